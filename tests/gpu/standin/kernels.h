// What kernels of the stand-in GPUs have in common.

#ifndef STANDIN_KERNELS_H_
#define STANDIN_KERNELS_H_

#include <functional>
#include <string>

#include "gpu.h"
#include "stream.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace standin {

// Registers the factory of TensorFlow's devices.
void RegisterFactory();

// Registers the kernels of NCCL.
void RegisterCollectives();

// The stream on which the kernels of a device run.
Stream& ComputeStream(tensorflow::OpKernelContext* context);

// A kernel that is queued by LaunchKernel.
class StreamKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  // On the stream's thread, it is one of the synchronous kernels, whose errors TensorFlow reports in another way.
  AsyncOpKernel* AsAsync() override;
};

// Queues a kernel, whose faults may be ordered. compute: what it does; it sets the outputs or the status of the context.
// cudnn_failure: the text of its status if it fails as one of cuDNN does; empty: that of cuDNN.
void LaunchKernel(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
                  const std::string& operation, std::function<void()> compute, const std::string& cudnn_failure = "");

using KernelFactory = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

// Returns what makes the kernels of an operation of cuDNN that the CPU lacks; null for any other operation.
KernelFactory CudnnKernel(const std::string& operation);

// Hides the outputs that a kernel has just computed, and queues their return: who does not wait for the stream reads NaN.
// pieces: the memory that the kernel has allocated.
void PublishLater(tensorflow::OpKernelContext* context, const NewPieces& pieces, Stream& stream);

}  // namespace standin

#endif  // STANDIN_KERNELS_H_
