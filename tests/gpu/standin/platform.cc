// The driver of the stand-in GPUs: a platform of StreamExecutor's C API, and the factory of TensorFlow's devices on it.

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "gpu.h"
#include "stream.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor_internal.h"
#include "tensorflow/core/common_runtime/device/device_id_manager.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device_process_state.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/public/session_options.h"

struct SP_Stream_st {
  explicit SP_Stream_st(int ordinal) : stream(ordinal) {}
  standin::Stream stream;
};

// An event that was never recorded is complete.
struct SP_Event_st {
  std::mutex mutex;
  std::shared_ptr<standin::Mark> mark;

  std::shared_ptr<standin::Mark> recorded() {
    std::lock_guard<std::mutex> lock(mutex);
    return mark;
  }
};

struct SP_Timer_st {
  int64_t begin = 0, end = 0;  // microseconds
};

namespace standin {
namespace {

constexpr char kName[] = "STANDIN", kType[] = "GPU";
// Above that of TensorFlow's own GPUs (210) and of pluggable ones (220).
constexpr int kPriority = 230;

Counts& CountsOf(const SP_Device* device) { return GpuOf(device->ordinal).counts(); }

// Memory.

void Allocate(const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  // TensorFlow's tensors are in a `Memory`; nothing else of this project allocates.
  memory->opaque = std::aligned_alloc(64, (size + 63) / 64 * 64);
  memory->size = size;
}

void Deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) { std::free(memory->opaque); }

void* AllocateHost(const SP_Device*, uint64_t size) { return std::aligned_alloc(64, (size + 63) / 64 * 64); }

void DeallocateHost(const SP_Device*, void* memory) { std::free(memory); }

TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return false; }

TF_Bool MemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  *free = *total = Options().memory;
  return true;
}

// Streams and events.

std::mutex streams_mutex;
std::vector<Stream*>& StreamsOf(int ordinal) {
  static auto* streams = new std::map<int, std::vector<Stream*>>;
  return (*streams)[ordinal];
}

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status*) {
  *stream = new SP_Stream_st(device->ordinal);
  std::lock_guard<std::mutex> lock(streams_mutex);
  StreamsOf(device->ordinal).push_back(&(*stream)->stream);
}

void DestroyStream(const SP_Device*, SP_Stream) {}  // its thread may still wait for work

void CreateStreamDependency(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status*) {
  dependent->stream.WaitFor(other->stream.Record());
}

void StreamStatus(const SP_Device* device, SP_Stream, TF_Status* status) {
  if (GpuOf(device->ordinal).lost())
    TF_SetStatus(status, TF_INTERNAL, "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure");
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status*) { *event = new SP_Event_st; }

void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }

SE_EventStatus EventStatus(const SP_Device* device, SP_Event event) {
  if (GpuOf(device->ordinal).lost()) return SE_EVENT_ERROR;
  const auto mark = event->recorded();
  return mark == nullptr || mark->reached() ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
  auto mark = stream->stream.Record();
  std::lock_guard<std::mutex> lock(event->mutex);
  event->mark = std::move(mark);
}

void WaitForEvent(const SP_Device* const, SP_Stream stream, SP_Event event, TF_Status* const) {
  if (auto mark = event->recorded()) stream->stream.WaitFor(std::move(mark));
}

void BlockHostForEvent(const SP_Device* device, SP_Event event, TF_Status*) {
  ++CountsOf(device).host_waits;
  if (auto mark = event->recorded()) mark->Wait();
}

void BlockHostUntilDone(const SP_Device* device, SP_Stream stream, TF_Status*) {
  ++CountsOf(device).host_waits;
  stream->stream.Drain();
}

void SynchronizeAllActivity(const SP_Device* device, TF_Status*) {
  ++CountsOf(device).host_waits;
  std::vector<Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    streams = StreamsOf(device->ordinal);
  }
  for (Stream* stream : streams) stream->Drain();
}

TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback, void* argument) {
  stream->stream.Push([callback, argument] {
    TF_Status* status = TF_NewStatus();
    callback(argument, status);
    TF_DeleteStatus(status);
  });
  return true;
}

// Timers, of which TensorFlow uses none here.

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status*) { *timer = new SP_Timer_st; }

void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }

void StartTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status*) {
  stream->stream.Push([timer] { timer->begin = NowMicroseconds(); });
}

void StopTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status*) {
  stream->stream.Push([timer] { timer->end = NowMicroseconds(); });
}

uint64_t TimerNanoseconds(SP_Timer timer) { return 1000 * static_cast<uint64_t>(timer->end - timer->begin); }

// Copies. The memory of the host, too, is read when the copy runs: pinned memory that changes meanwhile is a fault.

void CopyToHost(const SP_Device* device, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                TF_Status*) {
  ++CountsOf(device).device_to_host;
  CountsOf(device).device_to_host_bytes += static_cast<int64_t>(size);
  stream->stream.Push([to, source = from->opaque, size] { std::memcpy(to, source, size); });
}

void CopyToDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                  TF_Status*) {
  ++CountsOf(device).host_to_device;
  CountsOf(device).host_to_device_bytes += static_cast<int64_t>(size);
  stream->stream.Push([target = to->opaque, from, size] { std::memcpy(target, from, size); });
}

void CopyInDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                  uint64_t size, TF_Status*) {
  ++CountsOf(device).device_to_device;
  CountsOf(device).device_to_device_bytes += static_cast<int64_t>(size);
  stream->stream.Push([target = to->opaque, source = from->opaque, size] { std::memcpy(target, source, size); });
}

void CopyToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status*) {
  ++CountsOf(device).device_to_host;
  ++CountsOf(device).host_waits;
  std::memcpy(to, from->opaque, size);
}

void CopyToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status*) {
  ++CountsOf(device).host_to_device;
  ++CountsOf(device).host_waits;
  std::memcpy(to->opaque, from, size);
}

void CopyInDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
                     TF_Status*) {
  ++CountsOf(device).host_waits;
  std::memcpy(to->opaque, from->opaque, size);
}

void Zero(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint64_t size, TF_Status*) {
  stream->stream.Push([target = memory->opaque, size] { std::memset(target, 0, size); });
}

void Fill(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t value, uint64_t size, TF_Status*) {
  stream->stream.Push([target = memory->opaque, value, size] { std::memset(target, value, size); });
}

void Fill32(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint32_t value, uint64_t size,
            TF_Status*) {
  stream->stream.Push([target = static_cast<uint32_t*>(memory->opaque), value, size] {
    std::fill(target, target + size / sizeof(value), value);
  });
}

// The platform.

void DeviceCount(const SP_Platform*, int* count, TF_Status*) { *count = static_cast<int>(VisibleGpus().size()); }

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
  SP_Device* device = params->device;
  device->struct_size = SP_DEVICE_STRUCT_SIZE;
  device->ordinal = params->ordinal;
  device->hardware_name = "Stand-in GPU";
  device->device_vendor = "none";
  device->pci_bus_id = "0";
}

void CreateStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  SP_StreamExecutor* executor = params->stream_executor;
  executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  executor->allocate = Allocate;
  executor->deallocate = Deallocate;
  executor->host_memory_allocate = AllocateHost;
  executor->host_memory_deallocate = DeallocateHost;
  executor->get_allocator_stats = AllocatorStats;
  executor->device_memory_usage = MemoryUsage;
  executor->create_stream = CreateStream;
  executor->destroy_stream = DestroyStream;
  executor->create_stream_dependency = CreateStreamDependency;
  executor->get_stream_status = StreamStatus;
  executor->create_event = CreateEvent;
  executor->destroy_event = DestroyEvent;
  executor->get_event_status = EventStatus;
  executor->record_event = RecordEvent;
  executor->wait_for_event = WaitForEvent;
  executor->create_timer = CreateTimer;
  executor->destroy_timer = DestroyTimer;
  executor->start_timer = StartTimer;
  executor->stop_timer = StopTimer;
  executor->memcpy_dtoh = CopyToHost;
  executor->memcpy_htod = CopyToDevice;
  executor->memcpy_dtod = CopyInDevice;
  executor->sync_memcpy_dtoh = CopyToHostNow;
  executor->sync_memcpy_htod = CopyToDeviceNow;
  executor->sync_memcpy_dtod = CopyInDeviceNow;
  executor->block_host_for_event = BlockHostForEvent;
  executor->block_host_until_done = BlockHostUntilDone;
  executor->synchronize_all_activity = SynchronizeAllActivity;
  executor->mem_zero = Zero;
  executor->memset = Fill;
  executor->memset32 = Fill32;
  executor->host_callback = HostCallback;
}

// Makes TensorFlow's devices. TensorFlow's own factory of pluggable devices cannot split a GPU, and its allocators do not
// report the memory in use or fill it.
class GpuFactory : public tensorflow::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    for (size_t i = 0; i < VisibleGpus().size(); ++i)
      devices->push_back("/physical_device:GPU:" + std::to_string(i));
    return absl::OkStatus();
  }

  absl::Status GetDeviceDetails(int, std::unordered_map<std::string, std::string>* details) override {
    (*details)["device_name"] = "Stand-in GPU";
    (*details)["compute_capability"] = "8.0";
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const tensorflow::SessionOptions& options, const std::string& name_prefix,
                             std::vector<std::unique_ptr<tensorflow::Device>>* devices) override {
    const auto& gpu_options = options.config.gpu_options();
    const auto& split = gpu_options.experimental().virtual_devices();
    int index = 0;
    for (int ordinal : Chosen(options)) {
      const int parts = ordinal < split.size() ? std::max(split[ordinal].memory_limit_mb_size(), 1) : 1;
      for (int part = 0; part < parts; ++part, ++index) {
        const bool limited = ordinal < split.size() && part < split[ordinal].memory_limit_mb_size();
        const int64_t limit =
            limited ? static_cast<int64_t>(split[ordinal].memory_limit_mb(part)) << 20 : Options().memory;
        TF_RETURN_IF_ERROR(CreateDevice(options, name_prefix, ordinal, index, limit, devices));
      }
    }
    return absl::OkStatus();
  }

 private:
  // The ordinals of the GPUs that the options allow.
  static std::vector<int> Chosen(const tensorflow::SessionOptions& options) {
    std::vector<int> ordinals;
    const auto& counts = options.config.device_count();
    const auto count = counts.find(kType);
    size_t most = count == counts.end() ? VisibleGpus().size() : count->second;
    const std::string& list = options.config.gpu_options().visible_device_list();
    if (list.empty()) {
      for (size_t i = 0; i < VisibleGpus().size(); ++i) ordinals.push_back(static_cast<int>(i));
    } else {
      std::stringstream entries(list);
      for (std::string entry; std::getline(entries, entry, ',');) ordinals.push_back(std::stoi(entry));
    }
    ordinals.resize(std::min(most, ordinals.size()));
    return ordinals;
  }

  // A process makes its devices more than once, for eager execution and for a server; they share the memory.
  static Memory* MemoryOf(int ordinal, int index, int64_t limit) {
    static std::mutex mutex;
    static auto* memories = new std::map<int, Memory*>;
    std::lock_guard<std::mutex> lock(mutex);
    Memory*& memory = (*memories)[index];
    if (memory == nullptr) memory = new Memory(GpuOf(ordinal), index, limit);
    return memory;
  }

  static absl::Status CreateDevice(const tensorflow::SessionOptions& options, const std::string& name_prefix,
                                   int ordinal, int index, int64_t limit,
                                   std::vector<std::unique_ptr<tensorflow::Device>>* devices) {
    const tsl::TfDeviceId id(index);
    TF_RETURN_IF_ERROR(tsl::DeviceIdManager::InsertTfPlatformDeviceIdPair(tensorflow::DeviceType(kType), id,
                                                                          tsl::PlatformDeviceId(ordinal)));
    // TensorFlow allocates pinned memory of the host through the first of its own allocators; nothing else uses them.
    tensorflow::PluggableDeviceProcessState::singleton(kType, kName)->GetPluggableDeviceAllocator(
        options.config.gpu_options(), id, limit);
    Memory* memory = MemoryOf(ordinal, index, limit);
    tensorflow::DeviceLocality locality;
    locality.set_bus_id(1);
    auto device = std::make_unique<tensorflow::PluggableDevice>(
        options, name_prefix + "/device:GPU:" + std::to_string(index), kType, kName, tensorflow::Bytes(limit), locality,
        id, "device: " + std::to_string(ordinal) + ", name: Stand-in GPU, pci bus id: 0, compute capability: 8.0",
        memory, tensorflow::ProcessState::singleton()->GetCPUAllocator(0), /*sync_every_op=*/false);
    TF_RETURN_IF_ERROR(device->Init(options));
    auto* compute = static_cast<stream_executor::CStream*>(device->tensorflow_accelerator_device_info()->stream);
    memory->set_compute_stream(&compute->Handle()->stream);
    devices->push_back(std::move(device));
    return absl::OkStatus();
  }
};

}  // namespace

void RegisterFactory() {
  tensorflow::DeviceFactory::Register(kType, std::make_unique<GpuFactory>(), kPriority, /*is_pluggable_device=*/true);
}

// The stream on which a kernel runs.
Stream& ComputeStream(tensorflow::OpKernelContext* context) {
  auto* stream = static_cast<stream_executor::CStream*>(context->op_device_context()->stream());
  return stream->Handle()->stream;
}

}  // namespace standin

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  SP_Platform* platform = params->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = standin::kName;
  platform->type = standin::kType;
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  SP_PlatformFns* functions = params->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = standin::DeviceCount;
  functions->create_device = standin::CreateDevice;
  functions->destroy_device = [](const SP_Platform*, SP_Device*) {};
  functions->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* device, TF_Status*) {
    device->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  };
  functions->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  functions->create_stream_executor = standin::CreateStreamExecutor;
  functions->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  functions->create_timer_fns = [](const SP_Platform*, SP_TimerFns* timer, TF_Status*) {
    timer->nanoseconds = standin::TimerNanoseconds;
  };
  functions->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

// For Python: copies the counts of the GPU of an ordinal, in the order of `Counts`.
extern "C" void StandinCounts(int ordinal, int64_t* values) {
  standin::Counts& counts = standin::GpuOf(ordinal).counts();
  for (const auto* count : {&counts.kernels, &counts.host_to_device, &counts.host_to_device_bytes,
                            &counts.device_to_host, &counts.device_to_host_bytes, &counts.device_to_device,
                            &counts.device_to_device_bytes, &counts.host_waits})
    *values++ = *count;
}
