// Kernels of the stand-in GPUs: for each GPU kernel of TensorFlow, one of the same definition that runs the CPU's on a
// stream of the device.

#include "kernels.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu.h"
#include "stream.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/determinism.h"

namespace standin {

using tensorflow::AsyncOpKernel;
using tensorflow::DeviceType;
using tensorflow::KernelDef;
using tensorflow::MemoryType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

thread_local bool in_kernel = false;

// Above the kernels of TensorFlow, whose priority is 0.
constexpr int kPriority = 10;

std::unique_ptr<OpKernel> CpuKernel(OpKernelConstruction* construction, const tensorflow::NodeDef& definition) {
  absl::Status status;
  auto kernel = tensorflow::CreateOpKernel(
      DeviceType("CPU"), construction->device(),
      construction->device()->GetAllocator(tensorflow::AllocatorAttributes()), definition,
      construction->graph_def_version(), &status);
  if (!status.ok()) construction->SetStatus(status);
  return kernel;
}

}  // namespace

void LaunchKernel(OpKernelContext* context, AsyncOpKernel::DoneCallback done, const std::string& operation,
                  std::function<void()> compute, const std::string& cudnn_failure) {
  Stream& stream = ComputeStream(context);
  stream.Push([context, done = std::move(done), operation, compute = std::move(compute), cudnn_failure, &stream] {
    Gpu& gpu = GpuOf(stream.ordinal());
    const absl::Status status = gpu.BeforeKernel(operation, cudnn_failure);
    if (status.ok()) {
      const int64_t begin = NowMicroseconds();
      NewPieces pieces;
      in_kernel = true;
      compute();
      in_kernel = false;
      if (context->status().ok()) PublishLater(context, pieces, stream);
      gpu.AfterKernel(operation, begin);
    } else {
      context->SetStatus(status);
    }
    // What follows may run other kernels, which must not run on the stream's thread.
    (*context->runner())(done);
  });
}

AsyncOpKernel* StreamKernel::AsAsync() { return in_kernel ? nullptr : this; }

void PublishLater(OpKernelContext* context, const NewPieces& pieces, Stream& stream) {
  struct Output {
    char* data;
    std::vector<char> result;
  };
  std::vector<Output> outputs;
  for (int i = 0; i < context->num_outputs(); ++i) {
    Tensor* output = context->mutable_output(i);
    if (context->output_memory_type(i) == tensorflow::HOST_MEMORY || output == nullptr) continue;
    if (!tensorflow::DataTypeCanUseMemcpy(output->dtype()) || !output->TotalBytes()) continue;
    char* data = const_cast<char*>(output->tensor_data().data());
    // An output that shares the memory of an input is left as it is: others may read it.
    if (pieces.Contains(data)) outputs.push_back({data, std::vector<char>(data, data + output->TotalBytes())});
  }
  // Outputs may share memory.
  for (const Output& output : outputs) std::memset(output.data, kNan, output.result.size());
  for (Output& output : outputs) {
    stream.PushLater([output = std::move(output)] {
      std::memcpy(output.data, output.result.data(), output.result.size());
    });
  }
}

namespace {

// Operations whose kernels on a real GPU copy the size of their result to the host.
bool CopiesSize(const std::string& operation) {
  return operation == "Where" || operation == "Unique" || operation == "UniqueV2" || operation == "DynamicPartition";
}

// Runs a CPU kernel on the stream of its device.
class CpuStreamKernel : public StreamKernel {
 public:
  explicit CpuStreamKernel(OpKernelConstruction* construction)
      : StreamKernel(construction),
        cpu_kernel_(CpuKernel(construction, def())),
        copies_size_(CopiesSize(type_string())) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    if (copies_size_) {
      Counts& counts = GpuOf(ComputeStream(context).ordinal()).counts();
      ++counts.device_to_host;
      counts.device_to_host_bytes += sizeof(int64_t);
    }
    LaunchKernel(context, std::move(done), type_string(), [this, context] {
      cpu_kernel_->Compute(context);
      if (tensorflow::OpDeterminismRequired() && IsScatter()) CountCopies(context);
    });
  }

 private:
  bool IsScatter() const { return type_string() == "ScatterNd" || type_string().find("TensorScatter") == 0; }

  // Counts what the scatter operations of a GPU copy if operations must be deterministic: the host computes them.
  void CountCopies(OpKernelContext* context) const {
    Counts& counts = GpuOf(ComputeStream(context).ordinal()).counts();
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (context->input_memory_type(i) == tensorflow::HOST_MEMORY) continue;
      ++counts.device_to_host;
      counts.device_to_host_bytes += context->input(i).TotalBytes();
    }
    const Tensor* output = context->mutable_output(0);
    ++counts.host_to_device;
    counts.host_to_device_bytes += output == nullptr ? 0 : output->TotalBytes();
    counts.host_waits += 2;
  }

  std::unique_ptr<OpKernel> cpu_kernel_;
  const bool copies_size_;
};

// Runs a CPU kernel at once: its definition says that a GPU's kernel computes in the host's memory, too.
class HostKernel : public OpKernel {
 public:
  explicit HostKernel(OpKernelConstruction* construction)
      : OpKernel(construction), cpu_kernel_(CpuKernel(construction, def())) {}

  void Compute(OpKernelContext* context) override { cpu_kernel_->Compute(context); }

  const Tensor* const_tensor() const override { return cpu_kernel_ ? cpu_kernel_->const_tensor() : nullptr; }

 private:
  std::unique_ptr<OpKernel> cpu_kernel_;
};

OpKernel* NewKernel(OpKernelConstruction* construction) {
  const auto on_host = [](MemoryType type) { return type == tensorflow::HOST_MEMORY; };
  const auto inputs = construction->input_memory_types(), outputs = construction->output_memory_types();
  if (std::all_of(inputs.begin(), inputs.end(), on_host) && std::all_of(outputs.begin(), outputs.end(), on_host))
    return new HostKernel(construction);
  return new CpuStreamKernel(construction);
}

// Operations whose GPU kernels TensorFlow runs on any device: they pass tensors, functions or state, and launch nothing.
bool RunsAsItIs(const std::string& operation) {
  static const char* const parts[] = {
      "TensorArray", "Queue",    "Iterator", "Dataset",  "Collective", "While",    "Switch",      "Merge",
      "Enter",       "Exit",     "NextIteration", "LoopCond", "PartitionedCall", "_Send", "_Recv", "_HostSend",
      "_HostRecv",   "_Arg",     "_Retval",  "_DeviceArg", "_DeviceRetval", "Placeholder", "ControlTrigger", "Assert",
      "Print",       "PyFunc",   "Eager",    "NoOp",     "VarHandle",  "MultiDevice", "RemoteCall", "SymbolicGradient",
      "FakeParam"};
  for (const char* part : parts)
    if (operation.find(part) != std::string::npos) return true;
  return operation == "If" || operation == "StatelessIf" || operation == "Case" || operation == "StackV2";
}

void RegisterKernels() {
  const tensorflow::KernelList all = tensorflow::GetAllRegisteredKernels();
  std::set<std::string> on_cpu;
  for (const KernelDef& kernel : all.kernel())
    if (kernel.device_type() == "CPU") on_cpu.insert(kernel.op());
  for (const KernelDef& kernel : all.kernel()) {
    if (kernel.device_type() != "GPU" || !kernel.label().empty() || RunsAsItIs(kernel.op())) continue;
    const KernelFactory cudnn_kernel = CudnnKernel(kernel.op());
    if (cudnn_kernel == nullptr && !on_cpu.count(kernel.op())) continue;
    auto* definition = new KernelDef(kernel);
    definition->set_priority(kPriority);
    tensorflow::kernel_factory::OpKernelRegistrar registrar(definition, "StandinKernel",
                                                              cudnn_kernel == nullptr ? NewKernel : cudnn_kernel);
  }
}

}  // namespace
}  // namespace standin

extern "C" void TF_InitKernel() {
  standin::RegisterFactory();
  standin::RegisterKernels();
  standin::RegisterCollectives();
}
