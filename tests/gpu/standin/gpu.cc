#include "gpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "tensorflow/core/platform/logging.h"

namespace standin {
namespace {

constexpr double kShortestKernel = 20;  // microseconds, of a slow GPU
thread_local NewPieces* innermost = nullptr;

int64_t Number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || !*text ? otherwise : std::atoll(text);
}

std::vector<Fault> OrderedFaults() {
  std::vector<Fault> faults;
  const char* text = std::getenv("STANDIN_FAULTS");
  std::stringstream orders(text == nullptr ? "" : text);
  for (std::string order; std::getline(orders, order, ';');) {
    std::stringstream words(order);
    Fault fault;
    words >> fault.kind;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
      if (key == "gpu") fault.gpu = std::stoi(value);
      else if (key == "operation") fault.operation = value;
      else if (key == "number") fault.number = std::stoll(value);
      else if (key == "bytes") fault.bytes = std::stoll(value);
      else if (key == "factor") fault.factor = std::stod(value);
      else LOG(FATAL) << "STANDIN_FAULTS: unknown word " << word;
    }
    faults.push_back(fault);
  }
  return faults;
}

// The faults of this process, with their counts.
std::mutex faults_mutex;
std::vector<Fault>& Faults() {
  static auto* faults = new std::vector<Fault>(OrderedFaults());
  return *faults;
}

}  // namespace

const OptionValues& Options() {
  static const auto* options = new OptionValues{
      static_cast<int>(Number("STANDIN_GPUS", 1)), Number("STANDIN_MEMORY", 2048) << 20,
      static_cast<int>(Number("STANDIN_DELAY", 50)), static_cast<unsigned>(Number("STANDIN_SEED", 0))};
  return *options;
}

std::vector<int> VisibleGpus() {
  std::vector<int> numbers;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int i = 0; i < Options().gpus; ++i) numbers.push_back(i);
    return numbers;
  }
  std::stringstream entries(visible);
  for (std::string entry; std::getline(entries, entry, ',');) {
    // A UUID, such as GPU-00000001-... or MIG-00000001-0000-..., begins with the number.
    const bool uuid = entry.rfind("GPU-", 0) == 0 || entry.rfind("MIG-", 0) == 0;
    const std::string digits = uuid ? entry.substr(4, 8) : entry;
    char* end;
    const long number = std::strtol(digits.c_str(), &end, 10);
    // As with CUDA, the first entry that is not a GPU ends the list.
    if (digits.empty() || *end || number < 0 || number >= Options().gpus) break;
    numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

Gpu& GpuOf(int ordinal) {
  static auto* gpus = [] {
    auto* made = new std::vector<Gpu*>;
    for (int number : VisibleGpus()) made->push_back(new Gpu(number));
    return made;
  }();
  return *gpus->at(ordinal);
}

int64_t NowMicroseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

absl::Status Gpu::BeforeKernel(const std::string& operation, const std::string& cudnn_failure) {
  ++counts_.kernels;
  bool silent = false, cudnn = false;
  {
    std::lock_guard<std::mutex> lock(faults_mutex);
    for (Fault& fault : Faults()) {
      if (fault.gpu != number_ || fault.kind == "slow") continue;
      if (fault.kind == "memory" && fault.operation.empty()) continue;
      if (!fault.operation.empty() && fault.operation != operation) continue;
      if (++fault.seen != fault.number) continue;
      if (fault.kind == "lost") lost_ = true;
      else if (fault.kind == "silent") silent = true;
      else if (fault.kind == "fallen") {
        setenv("STANDIN_FALLEN", std::to_string(number_).c_str(), 1);  // read by driver/nvml.cc
        silent = true;
      }
      else if (fault.kind == "cudnn") cudnn = true;
      else if (fault.kind == "memory") fault.due = true;
      else LOG(FATAL) << "STANDIN_FAULTS: unknown fault " << fault.kind;
    }
  }
  while (silent) std::this_thread::sleep_for(std::chrono::hours(1));
  if (lost_) return absl::InternalError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure");
  if (cudnn) {
    const std::string of_cudnn = "CUDNN_STATUS_EXECUTION_FAILED in " + operation;
    LOG(ERROR) << of_cudnn;
    return absl::InternalError(cudnn_failure.empty() ? of_cudnn : cudnn_failure);
  }
  return absl::OkStatus();
}

void Gpu::AfterKernel(const std::string& operation, int64_t begin) {
  double factor = 1;
  {
    std::lock_guard<std::mutex> lock(faults_mutex);
    for (const Fault& fault : Faults())
      if (fault.kind == "slow" && fault.gpu == number_) factor = fault.factor;
  }
  if (factor > 1) {
    const double taken = std::max<double>(NowMicroseconds() - begin, kShortestKernel);
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>((factor - 1) * taken)));
  }
  static FILE* trace = std::getenv("STANDIN_TRACE") ? std::fopen(std::getenv("STANDIN_TRACE"), "a") : nullptr;
  if (trace == nullptr) return;
  // One call writes a whole line, also beside those of other threads.
  std::fprintf(trace, "%d %s %lld %lld\n", number_, operation.c_str(), static_cast<long long>(begin),
               static_cast<long long>(NowMicroseconds()));
  std::fflush(trace);
}

bool Gpu::AllocationFails(int64_t in_use) {
  std::lock_guard<std::mutex> lock(faults_mutex);
  bool fails = false;
  for (Fault& fault : Faults()) {
    if (fault.kind != "memory" || fault.gpu != number_) continue;
    if (fault.bytes >= 0) fails |= in_use > fault.bytes;
    else if (fault.operation.empty()) fails |= ++fault.seen == fault.number;
    else fails |= std::exchange(fault.due, false);
  }
  return fails;
}

Memory::Memory(Gpu& gpu, int index, int64_t limit) : gpu_(gpu), index_(index), limit_(limit) {
  stats_.bytes_limit = limit;
}

std::string Memory::Name() { return "GPU_" + std::to_string(index_) + "_bfc"; }

void* Memory::NewPiece(size_t size, size_t alignment) {
  auto& free = free_[size];
  const auto aligned = [alignment](void* piece) { return reinterpret_cast<uintptr_t>(piece) % alignment == 0; };
  const auto found = std::find_if(free.rbegin(), free.rend(), aligned);
  if (found != free.rend()) {
    void* piece = *found;
    free.erase(std::next(found).base());
    return piece;
  }
  void* piece = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  std::memset(piece, kNan, size);
  return piece;
}

void* Memory::AllocateRaw(size_t alignment, size_t num_bytes) {
  alignment = std::max(alignment, Allocator::kAllocatorAlignment);
  // TensorFlow's GPU allocator rounds up to 256 bytes.
  const size_t size = std::max<size_t>((num_bytes + 255) / 256 * 256, 256);
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t in_use = stats_.bytes_in_use + static_cast<int64_t>(size);
  if (in_use > limit_ || gpu_.AllocationFails(in_use)) {
    LOG(WARNING) << "Allocator (" << Name() << ") ran out of memory trying to allocate " << num_bytes << " bytes";
    return nullptr;
  }
  void* piece = NewPiece(size, alignment);
  sizes_[piece] = size;
  ++stats_.num_allocs;
  stats_.bytes_in_use = in_use;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, in_use);
  stats_.largest_alloc_size = std::max(stats_.largest_alloc_size, static_cast<int64_t>(size));
  if (innermost != nullptr) innermost->pieces_.push_back(piece);
  return piece;
}

void Memory::DeallocateRaw(void* piece) {
  size_t size;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(piece);
    CHECK(found != sizes_.end()) << "a piece of memory that was freed before";
    size = found->second;
    sizes_.erase(found);
    stats_.bytes_in_use -= static_cast<int64_t>(size);
  }
  auto release = [this, piece, size] {
    std::memset(piece, kNan, size);
    std::lock_guard<std::mutex> lock(mutex_);
    free_[size].push_back(piece);
  };
  if (compute_stream_ == nullptr) release();
  else compute_stream_->Push(release);
}

size_t Memory::RequestedSize(const void* piece) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sizes_.at(piece);
}

std::optional<tensorflow::AllocatorStats> Memory::GetStats() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

bool Memory::ClearStats() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.num_allocs = 0;
  stats_.peak_bytes_in_use = stats_.bytes_in_use;
  stats_.largest_alloc_size = 0;
  return true;
}

NewPieces::NewPieces() : outer_(innermost) { innermost = this; }

NewPieces::~NewPieces() { innermost = outer_; }

bool NewPieces::Contains(const void* piece) const {
  return std::find(pieces_.begin(), pieces_.end(), piece) != pieces_.end();
}

}  // namespace standin
