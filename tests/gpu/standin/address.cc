// An operation that tells where the memory of a tensor is, for the tests of the stand-in itself. It waits for nothing, so
// that a test can look at the memory of a GPU too early, and after it was freed. The address is two int32, since eager
// TensorFlow copies results of other types to the device.

#include <cstring>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace standin {
namespace {

REGISTER_OP("StandinAddress")
    .Input("tensor: float")
    .Output("address: int32")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(2));
      return absl::OkStatus();
    });

class AddressKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor* address;
    OP_REQUIRES_OK(context, context->allocate_output(0, {2}, &address));
    const void* data = context->input(0).data();
    std::memcpy(address->data(), &data, sizeof(data));
  }
};

REGISTER_KERNEL_BUILDER(Name("StandinAddress").Device("GPU").HostMemory("address"), AddressKernel);

}  // namespace
}  // namespace standin
