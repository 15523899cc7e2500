// The state of the stand-in GPUs: options, memory, faults and counts.
//
// Everything is configured by environment variables, so that any command can run on stand-in GPUs:
//   STANDIN_GPUS    number of physical GPUs (default 1); CUDA_VISIBLE_DEVICES selects among them
//   STANDIN_MEMORY  memory of each, in megabytes (default 2048)
//   STANDIN_DELAY   longest random delay of a piece of work, in microseconds (default 50)
//   STANDIN_SEED    seed of the delays (default 0)
//   STANDIN_FAULTS  faults, separated by semicolons, such as "lost gpu=1 operation=MatMul number=7":
//     memory gpu=G number=N     the Nth allocation of a GPU fails
//     memory gpu=G bytes=B      an allocation beyond B bytes in use fails
//     memory gpu=G operation=O  the next allocation fails when that kernel has begun
//     lost gpu=G                the driver reports an error for everything from that kernel on
//     silent gpu=G              that kernel never ends
//     fallen gpu=G              that kernel never ends, and the driver no longer finds the GPU
//     cudnn gpu=G               that kernel fails as one of cuDNN does
//     slow gpu=G factor=F       kernels take F times as long, at least F times 20 microseconds
//     A kernel is the Nth (number=N, default 1) of an operation (operation=NAME, default any) on that GPU.
//   STANDIN_TRACE   file to which a line is appended for each kernel: gpu, operation, begin and end in microseconds

#ifndef STANDIN_GPU_H_
#define STANDIN_GPU_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "stream.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace standin {

// The byte of which memory without a result consists. Four of them are a float NaN; so are two, of both 16-bit types.
constexpr int kNan = 0xFF;

struct OptionValues {
  int gpus = 1;
  int64_t memory = int64_t{2048} << 20;  // bytes
  int delay = 50;                        // microseconds
  unsigned seed = 0;
};

const OptionValues& Options();

// The physical numbers of the GPUs that CUDA_VISIBLE_DEVICES allows, in its order.
std::vector<int> VisibleGpus();

struct Fault {
  std::string kind;
  int gpu = 0;  // physical number
  std::string operation;
  int64_t number = 1;
  int64_t bytes = -1;
  double factor = 1;
  int64_t seen = 0;  // kernels or allocations so far that count towards `number`
  bool due = false;  // of a memory fault with an operation: the next allocation fails
};

// The counts of a GPU since the start of the process, read by Python as an array of int64.
struct Counts {
  std::atomic<int64_t> kernels{0};
  std::atomic<int64_t> host_to_device{0};
  std::atomic<int64_t> host_to_device_bytes{0};
  std::atomic<int64_t> device_to_host{0};
  std::atomic<int64_t> device_to_host_bytes{0};
  std::atomic<int64_t> device_to_device{0};
  std::atomic<int64_t> device_to_device_bytes{0};
  std::atomic<int64_t> host_waits{0};  // in which a thread of the host blocks until a stream has run
};

// A physical GPU.
class Gpu {
 public:
  explicit Gpu(int number) : number_(number) {}

  int number() const { return number_; }
  bool lost() const { return lost_; }
  Counts& counts() { return counts_; }

  // Called on a stream's thread before a kernel. Blocks for ever if the GPU falls silent. Returns the kernel's status.
  // cudnn_failure: the text of the status of a kernel that fails as one of cuDNN does; empty: that of cuDNN.
  absl::Status BeforeKernel(const std::string& operation, const std::string& cudnn_failure);

  // Called on a stream's thread after a kernel that began at a time, in microseconds: sleeps on a slow GPU, and traces.
  void AfterKernel(const std::string& operation, int64_t begin);

  // Whether an ordered fault lets an allocation fail. in_use: bytes, with those of this allocation.
  bool AllocationFails(int64_t in_use);

 private:
  const int number_;
  std::atomic<bool> lost_{false};
  Counts counts_;
};

// The GPU of an index among the visible ones.
Gpu& GpuOf(int ordinal);

int64_t NowMicroseconds();

// The memory of a logical device. A new piece is full of NaN, and so is a freed one, after what the compute stream has
// queued at that moment: as with TensorFlow's allocator, which knows of one stream. Freed pieces are kept, for others of
// their size.
class Memory : public tensorflow::Allocator {
 public:
  // index: of the logical device. limit: bytes.
  Memory(Gpu& gpu, int index, int64_t limit);

  std::string Name() override;
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* piece) override;
  bool TracksAllocationSizes() const override { return true; }
  size_t RequestedSize(const void* piece) const override;
  std::optional<tensorflow::AllocatorStats> GetStats() override;
  bool ClearStats() override;
  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kDevice; }

  void set_compute_stream(Stream* stream) { compute_stream_ = stream; }

 private:
  // Returns a piece that is full of NaN. The caller holds the lock.
  void* NewPiece(size_t size, size_t alignment);

  Gpu& gpu_;
  const int index_;
  const int64_t limit_;
  Stream* compute_stream_ = nullptr;
  mutable std::mutex mutex_;
  std::map<const void*, size_t> sizes_;        // of the pieces in use
  std::map<size_t, std::vector<void*>> free_;  // by size
  tensorflow::AllocatorStats stats_;
};

// The pieces that this thread has allocated since a collector was made, in any `Memory`.
class NewPieces {
 public:
  NewPieces();
  ~NewPieces();
  bool Contains(const void* piece) const;

 private:
  friend class Memory;
  std::vector<const void*> pieces_;
  NewPieces* const outer_;
};

}  // namespace standin

#endif  // STANDIN_GPU_H_
