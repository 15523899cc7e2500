// NCCL between the stand-in GPUs of a process: TensorFlow's operations of NCCL, and those of tf.distribute with the
// communication hint "nccl". With other hints, TensorFlow runs a ring of copies and sums, which needs nothing here.
//
// As in TensorFlow, a collective is launched when all its devices have asked for it, on a stream of each device that
// runs nothing else; all devices launch in the same order. There, the kernel of a device blocks its stream until those
// of all others run: one that never runs lets all others hang. So do two collectives of which each waits, on another
// device, for the end of the other, because they were asked for in different orders.

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu.h"
#include "kernels.h"
#include "stream.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace standin {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CollectiveParams;
using tensorflow::KernelDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int kPriority = 10;  // above the kernels of TensorFlow
constexpr char kImplementation[] = "StandinNccl";

enum class Kind { kAllReduce, kReduce, kBroadcast, kGather, kReduceScatter };

// What a collective computes. reduction: "sum", "prod", "min" or "max", of those that reduce.
struct Work {
  Kind kind;
  std::string reduction;
  bool mean = false;
};

// A device of a collective.
struct Participant {
  OpKernelContext* context;
  const Tensor* input;  // null for a receiver of a broadcast
  Tensor* output;       // null for one that only sends
  bool root;            // the source of a broadcast
  std::function<void(const absl::Status&)> done;

  int ordinal() const { return ComputeStream(context).ordinal(); }
  const Tensor& tensor() const { return input != nullptr ? *input : *output; }
};

template <typename T>
void Reduce(const Work& work, const std::vector<const char*>& inputs, int64_t elements, char* result) {
  T* total = reinterpret_cast<T*>(result);
  std::memcpy(total, inputs[0], elements * sizeof(T));
  for (size_t i = 1; i < inputs.size(); ++i) {
    const T* term = reinterpret_cast<const T*>(inputs[i]);
    const auto combine = [&](auto operation) { std::transform(total, total + elements, term, total, operation); };
    if (work.reduction == "sum") combine([](T a, T b) { return static_cast<T>(a + b); });
    else if (work.reduction == "prod") combine([](T a, T b) { return static_cast<T>(a * b); });
    else if (work.reduction == "min") combine([](T a, T b) { return std::min(a, b); });
    else combine([](T a, T b) { return std::max(a, b); });
  }
  if (work.mean)
    std::transform(total, total + elements, total,
                   [&](T sum) { return static_cast<T>(sum / static_cast<T>(inputs.size())); });
}

// A collective that was launched.
class Exchange {
 public:
  // participants: by their rank.
  Exchange(const Work& work, std::vector<Participant> participants)
      : work_(work), participants_(std::move(participants)) {}

  const std::vector<Participant>& participants() const { return participants_; }

  // Whether the tensors of all participants have the same type and number of elements.
  bool Consistent() const {
    const Tensor& first = participants_[0].tensor();
    return std::all_of(participants_.begin(), participants_.end(), [&first](const Participant& other) {
      return other.tensor().dtype() == first.dtype() && other.tensor().NumElements() == first.NumElements();
    });
  }

  // Called on a stream of each participant: blocks until all have called it. The last one computes the results, since
  // afterwards an input may be overwritten, with the output of its device or by what follows.
  void Meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (++arrived_ == participants_.size()) {
      Compute();
      computed_ = true;
      computed_condition_.notify_all();
    }
    computed_condition_.wait(lock, [this] { return computed_; });
  }

  // Copies the result of a participant into its output, after `Meet`.
  void Receive(size_t rank) const {
    Tensor* output = participants_[rank].output;
    if (output == nullptr) return;
    char* to = const_cast<char*>(output->tensor_data().data());
    const size_t size = output->TotalBytes();
    std::memcpy(to, result_.data() + (work_.kind == Kind::kReduceScatter ? rank * size : 0), size);
  }

 private:
  void Compute() {
    std::vector<const char*> inputs;
    for (const Participant& participant : participants_)
      if (participant.input != nullptr && (work_.kind != Kind::kBroadcast || participant.root))
        inputs.push_back(participant.input->tensor_data().data());
    const Tensor& tensor = participants_[0].tensor();
    const size_t size = tensor.TotalBytes();
    if (work_.reduction.empty()) {  // all inputs, one after another
      result_.resize(inputs.size() * size);
      for (size_t i = 0; i < inputs.size(); ++i) std::memcpy(result_.data() + i * size, inputs[i], size);
      return;
    }
    result_.resize(size);
    const int64_t elements = tensor.NumElements();
    switch (tensor.dtype()) {
      case tensorflow::DT_HALF: return Reduce<Eigen::half>(work_, inputs, elements, result_.data());
      case tensorflow::DT_BFLOAT16: return Reduce<Eigen::bfloat16>(work_, inputs, elements, result_.data());
      case tensorflow::DT_FLOAT: return Reduce<float>(work_, inputs, elements, result_.data());
      case tensorflow::DT_DOUBLE: return Reduce<double>(work_, inputs, elements, result_.data());
      case tensorflow::DT_INT32: return Reduce<int32_t>(work_, inputs, elements, result_.data());
      case tensorflow::DT_INT64: return Reduce<int64_t>(work_, inputs, elements, result_.data());
      default: LOG(FATAL) << "NCCL reduces no " << tensorflow::DataTypeString(tensor.dtype());
    }
  }

  const Work work_;
  const std::vector<Participant> participants_;
  std::mutex mutex_;
  std::condition_variable computed_condition_;
  size_t arrived_ = 0;
  bool computed_ = false;
  std::vector<char> result_;
};

// Runs on the stream of a participant for collectives.
void RunKernel(Exchange& exchange, size_t rank) {
  const Participant& participant = exchange.participants()[rank];
  const std::string& operation = participant.context->op_kernel().type_string();
  Gpu& gpu = GpuOf(participant.ordinal());
  absl::Status status = gpu.BeforeKernel(operation, "");
  if (status.ok()) {
    exchange.Meet();
    // A slow GPU is slow at its own work, not at waiting for others.
    const int64_t begin = NowMicroseconds();
    exchange.Receive(rank);
    gpu.AfterKernel(operation, begin);
  } else if (gpu.lost()) {
    // TensorFlow reports the error for this participant only: the kernels of the others run and wait.
    status = absl::UnknownError("Error invoking NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO for details)");
  }
  // What follows may run other kernels, which must not run on the stream's thread.
  (*participant.context->runner())([done = participant.done, status] { done(status); });
}

// Gathers the participants of collectives, and launches those that are complete.
class Manager {
 public:
  static Manager& Instance() {
    static auto* manager = new Manager;
    return *manager;
  }

  // key: of a collective in one step. size: the number of its participants.
  void Join(const std::string& key, size_t size, const Work& work, Participant participant) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Participant>& waiting = waiting_[key];
    waiting.push_back(std::move(participant));
    if (waiting.size() < size) return;
    std::sort(waiting.begin(), waiting.end(),
              [](const Participant& a, const Participant& b) { return a.ordinal() < b.ordinal(); });
    auto exchange = std::make_shared<Exchange>(work, std::move(waiting));
    waiting_.erase(key);
    Launch(exchange);
  }

 private:
  void Launch(const std::shared_ptr<Exchange>& exchange) {
    const std::vector<Participant>& participants = exchange->participants();
    absl::Status status;
    for (size_t i = 1; i < participants.size(); ++i)
      if (participants[i].ordinal() == participants[i - 1].ordinal())
        status = absl::InternalError("NCCL: invalid usage. Set NCCL_DEBUG=WARN for detail.");  // parts of one GPU
    // NCCL itself would hang or write beyond the end of a tensor.
    if (!exchange->Consistent()) status = absl::InvalidArgumentError("a collective of different shapes or types");
    for (size_t rank = 0; rank < participants.size(); ++rank) {
      const Participant& participant = participants[rank];
      if (!status.ok()) {
        (*participant.context->runner())([done = participant.done, status] { done(status); });
        continue;
      }
      Stream*& stream = streams_[participant.ordinal()];
      if (stream == nullptr) stream = new Stream(participant.ordinal());
      if (participant.input != nullptr) stream->WaitFor(ComputeStream(participant.context).Record());
      stream->Push([exchange, rank] { RunKernel(*exchange, rank); });
    }
  }

  // Held during a launch as well, so that launches have the same order on all devices.
  std::mutex mutex_;
  std::map<std::string, std::vector<Participant>> waiting_;
  std::map<int, Stream*> streams_;  // by the ordinal of a GPU
};

std::string FrameKey(OpKernelContext* context) {
  return std::to_string(context->frame_iter().frame_id) + ":" + std::to_string(context->frame_iter().iter_id);
}

// NcclAllReduce, and the parts of NcclReduce and NcclBroadcast that TensorFlow's rewriting of graphs makes of them.
class NcclKernel : public AsyncOpKernel {
 public:
  explicit NcclKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    const std::string& operation = type_string();
    work_.kind = operation == "NcclAllReduce" ? Kind::kAllReduce
                 : operation.find("Reduce") != std::string::npos ? Kind::kReduce : Kind::kBroadcast;
    OP_REQUIRES_OK(construction, construction->GetAttr("num_devices", &num_devices_));
    OP_REQUIRES_OK(construction, construction->GetAttr("shared_name", &shared_name_));
    if (work_.kind != Kind::kBroadcast)
      OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &work_.reduction));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor* input = &context->input(0);
    Tensor* output = nullptr;
    if (type_string() == "_NcclBroadcastRecv") {
      tensorflow::TensorShape shape;
      OP_REQUIRES_OK_ASYNC(context, tensorflow::tensor::MakeShape(*input, &shape), done);
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &output), done);
      input = nullptr;
    } else if (num_outputs() > 0) {
      OP_REQUIRES_OK_ASYNC(context, context->forward_input_or_allocate_output({0}, 0, input->shape(), &output), done);
    }
    const std::string key = shared_name_ + ";" + std::to_string(context->step_id()) + ";" + FrameKey(context);
    const auto finish = [context, done](const absl::Status& status) {
      context->SetStatus(status);
      done();
    };
    Manager::Instance().Join(key, num_devices_, work_, {context, input, output, input != nullptr, finish});
  }

 private:
  Work work_;
  int num_devices_;
  std::string shared_name_;
};

// The operations of tf.distribute with the hint "nccl". A group of several processes runs TensorFlow's ring instead.
class CollectiveKernel : public AsyncOpKernel {
 public:
  explicit CollectiveKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    struct Form {
      Kind kind;
      tensorflow::CollectiveType type;
    };
    static const auto* forms = new std::map<std::string, Form>{
        {"CollectiveReduceV2", {Kind::kAllReduce, tensorflow::REDUCTION_COLLECTIVE}},
        {"CollectiveGatherV2", {Kind::kGather, tensorflow::GATHER_COLLECTIVE}},
        {"CollectiveBcastSendV2", {Kind::kBroadcast, tensorflow::BROADCAST_COLLECTIVE}},
        {"CollectiveBcastRecvV2", {Kind::kBroadcast, tensorflow::BROADCAST_COLLECTIVE}},
        {"CollectiveReduceScatterV2", {Kind::kReduceScatter, tensorflow::REDUCE_SCATTER_COLLECTIVE}}};
    work_.kind = forms->at(type_string()).kind;
    type_ = forms->at(type_string()).type;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &data_type_));
    OP_REQUIRES_OK(construction, construction->GetAttr("timeout_seconds", &timeout_));
    if (!construction->HasAttr("merge_op")) return;
    static const auto* reductions = new std::map<std::string, std::pair<std::string, std::string>>{
        {"Add", {"sum", "Add"}}, {"Mul", {"prod", "Mul"}}, {"Min", {"min", "Minimum"}}, {"Max", {"max", "Maximum"}}};
    std::string merge, last;
    OP_REQUIRES_OK(construction, construction->GetAttr("merge_op", &merge));
    OP_REQUIRES_OK(construction, construction->GetAttr("final_op", &last));
    work_.reduction = reductions->at(merge).first;
    work_.mean = last == "Div";
    // The ring runs kernels of its own.
    merge_ = NewKernel(construction, reductions->at(merge).second);
    if (work_.mean) last_ = NewKernel(construction, last);
  }

  const Work& work() const { return work_; }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const bool receives = type_string() == "CollectiveBcastRecvV2";
    auto* params = new CollectiveParams;  // which counts references, and begins with one
    auto finish = [context, params, done](const absl::Status& status) {
      context->SetStatus(status);
      done();
      params->Unref();
    };
    tensorflow::TensorShape shape;
    if (receives) {
      const absl::Status status = tensorflow::tensor::MakeShape(context->input(3), &shape);
      if (!status.ok()) return finish(status);
    } else {
      shape = context->input(0).shape();
    }
    const auto number = [&](int i) { return context->input(receives ? i - 1 : i).scalar<int32_t>()(); };
    params->name = name();
    params->group.device_type = tensorflow::DeviceType("GPU");
    params->group.group_size = number(1);
    params->group.group_key = number(2);
    params->instance.instance_key = number(3);
    params->instance.type = type_;
    params->instance.data_type = data_type_;
    params->instance.impl_details.timeout_seconds = timeout_;
    // Only for a sum that is scattered has TensorFlow no ring.
    params->instance.impl_details.communication_hint = work_.kind == Kind::kReduceScatter ? "nccl" : "ring";
    if (work_.kind == Kind::kBroadcast) params->instance.impl_details.subdiv_offsets.push_back(0);
    params->is_source = type_string() == "CollectiveBcastSendV2";
    params->merge_op = merge_.get();
    params->final_op = last_.get();

    const int size = params->group.group_size;
    if (work_.kind == Kind::kGather) shape.set_dim(0, shape.dim_size(0) * size);
    if (work_.kind == Kind::kReduceScatter) shape.set_dim(0, shape.dim_size(0) / size);
    params->instance.shape = shape;
    Tensor* output;
    const bool in_place = work_.kind == Kind::kAllReduce || params->is_source;
    const absl::Status allocated = in_place ? context->forward_input_or_allocate_output({0}, 0, shape, &output)
                                            : context->allocate_output(0, shape, &output);
    if (!allocated.ok()) return finish(allocated);

    auto* executor = context->collective_executor();
    const std::string key = std::to_string(params->group.group_key) + ":" +
                            std::to_string(params->instance.instance_key) + ":" + FrameKey(context);
    // Meeting the other devices of the group may block.
    executor->RunClosure([context, params, executor, key, finish] {
      executor->CompleteParamsAsync(context->device()->attributes(), params, context->cancellation_manager(),
                                    [context, params, executor, key, finish](const absl::Status& status) {
                                      if (!status.ok()) return finish(status);
                                      if (params->group.num_tasks == 1)
                                        params->instance.impl_details.collective_name = kImplementation;
                                      executor->ExecuteAsync(context, params, key, finish);
                                    });
    });
  }

 private:
  static std::unique_ptr<OpKernel> NewKernel(OpKernelConstruction* construction, const std::string& operation) {
    tensorflow::NodeDef definition;
    definition.set_name(operation);
    definition.set_op(operation);
    definition.set_device(construction->def().device());
    for (int i = 0; i < 2; ++i) definition.add_input(construction->def().input(0));
    (*definition.mutable_attr())["T"] = construction->def().attr().at("T");
    absl::Status status;
    auto kernel = tensorflow::CreateOpKernel(
        construction->device_type(), construction->device(),
        construction->device()->GetAllocator(tensorflow::AllocatorAttributes()), definition,
        construction->graph_def_version(), &status);
    if (!status.ok()) construction->SetStatus(status);
    return kernel;
  }

  Work work_;
  tensorflow::CollectiveType type_;
  tensorflow::DataType data_type_;
  float timeout_;
  std::unique_ptr<OpKernel> merge_, last_;
};

// What TensorFlow's executor of collectives calls for those of a `CollectiveKernel`.
class Implementation : public tensorflow::CollectiveImplementationInterface {
 public:
  absl::Status InitializeCollectiveParams(CollectiveParams*) override { return absl::OkStatus(); }

  absl::Status InitializeCollectiveContext(std::shared_ptr<tensorflow::CollectiveContext> context) override {
    context_ = std::move(context);
    return absl::OkStatus();
  }

  void Run(tensorflow::StatusCallback done) override {
    const CollectiveParams& params = *context_->col_params;
    const Work& work = static_cast<const CollectiveKernel&>(context_->op_ctx->op_kernel()).work();
    Manager::Instance().Join(context_->exec_key + ":" + std::to_string(context_->step_id), params.group.group_size,
                             work, {context_->op_ctx, context_->input, context_->output, params.is_source, done});
  }

 private:
  std::shared_ptr<tensorflow::CollectiveContext> context_;
};

template <typename Kernel>
OpKernel* Make(OpKernelConstruction* construction) {
  return new Kernel(construction);
}

// Registers a kernel in the place of TensorFlow's on a type of device. hint: of the operations that have one.
void Register(const std::string& operation, const std::string& device, const char* hint, KernelFactory make) {
  const tensorflow::KernelList kernels = tensorflow::GetRegisteredKernelsForOp(operation);
  for (const KernelDef& kernel : kernels.kernel()) {
    if (kernel.device_type() != device) continue;
    auto* definition = new KernelDef(kernel);
    definition->set_device_type("GPU");
    definition->set_priority(kPriority);
    if (hint != nullptr) {
      auto* constraint = definition->add_constraint();
      constraint->set_name("communication_hint");
      constraint->mutable_allowed_values()->mutable_list()->add_s(hint);
    }
    tensorflow::kernel_factory::OpKernelRegistrar registrar(definition, "StandinCollective", make);
  }
}

}  // namespace

void RegisterCollectives() {
  static tensorflow::CollectiveRegistration implementation(kImplementation, [] { return new Implementation; });
  for (const char* operation :
       {"NcclAllReduce", "_NcclReduceSend", "_NcclReduceRecv", "_NcclBroadcastSend", "_NcclBroadcastRecv"})
    Register(operation, "GPU", nullptr, Make<NcclKernel>);
  for (const char* operation : {"CollectiveReduceV2", "CollectiveGatherV2", "CollectiveBcastSendV2",
                                "CollectiveBcastRecvV2", "CollectiveReduceScatterV2"})
    Register(operation, "DEFAULT", "nccl", Make<CollectiveKernel>);
}

}  // namespace standin
