// Kernels of cuDNN's recurrent layers, CudnnRNNV3 and CudnnRNNBackpropV3: what cuDNN computes, by Eigen, in float32.
//
// They have one unidirectional layer: an LSTM, or a GRU whose reset gate is applied after the recurrent product. Rows
// are sorted by length, the longest first, and the tokens of all rows are packed step by step: a step is one block of
// tokens, those of the first rows. Padding is not read.

#include <algorithm>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/op_requires.h"
#include "tensorflow/core/framework/tensor.h"

namespace standin {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
template <typename T>
using MatrixOf = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Matrix = MatrixOf<float>;
using Map = Eigen::Map<Matrix>;

// What describes the layer and its batch.
struct Model {
  bool lstm, time_major;
  int rows, steps, features, units;
  DataType type;

  int gates() const { return lstm ? 4 : 3; }
  int gate_units() const { return gates() * units; }
  int params() const { return gate_units() * (features + units + 2); }
  // What the forward kernel keeps of a token: its activated gates, and a vector more: an LSTM's cell, or the recurrent
  // product in a GRU's candidate.
  int kept() const { return gate_units() + units; }
  TensorShape h() const { return time_major ? TensorShape({1, rows, units}) : TensorShape({rows, 1, units}); }
  TensorShape c() const { return lstm ? h() : TensorShape({}); }
  TensorShape output() const {
    return time_major ? TensorShape({steps, rows, units}) : TensorShape({rows, steps, units});
  }
  // Of the reserved space, in which `kept` is float32, whatever the type.
  TensorShape reserved(int tokens) const {
    return {int64_t{tokens} * kept() * 4 / tensorflow::DataTypeSize(type)};
  }
};

// Which tokens are real, and their order.
class Packing {
 public:
  Packing(const Model& model, const Tensor& lengths)
      : padded_rows_(model.rows * model.steps), order_(model.rows), begins_{0} {
    const auto of_row = lengths.vec<int>();
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int one, int other) { return of_row(one) > of_row(other); });
    for (int step = 0; step < of_row(order_[0]); ++step) {
      for (int row : order_) {
        if (of_row(row) <= step) break;
        padded_.push_back(model.time_major ? step * model.rows + row : row * model.steps + step);
      }
      begins_.push_back(static_cast<int>(padded_.size()));
    }
  }

  int steps() const { return static_cast<int>(begins_.size()) - 1; }  // of the longest row
  int tokens() const { return begins_.back(); }
  int begin(int step) const { return begins_[step]; }
  int rows(int step) const { return begins_[step + 1] - begins_[step]; }  // that have not ended

  // [rows * steps, n], in the order of the layout -> [tokens, n].
  Matrix Tokens(const Matrix& padded) const { return padded(padded_, Eigen::placeholders::all); }

  // The other way, with zeros at padding.
  Matrix Padded(const Matrix& tokens) const {
    Matrix padded = Matrix::Zero(padded_rows_, tokens.cols());
    padded(padded_, Eigen::placeholders::all) = tokens;
    return padded;
  }

  // [rows, n], in the batch's order -> in that of lengths.
  Matrix Sorted(const Matrix& states) const { return states(order_, Eigen::placeholders::all); }

  // The other way.
  Matrix Unsorted(const Matrix& states) const {
    Matrix unsorted(states.rows(), states.cols());
    unsorted(order_, Eigen::placeholders::all) = states;
    return unsorted;
  }

  // What the token before has, or the row's first state: [tokens, n].
  template <typename Tokens>
  Matrix Previous(const Tokens& tokens, const Matrix& first) const {
    Matrix previous(tokens.rows(), tokens.cols());
    previous.topRows(first.rows()) = first;
    for (int step = 1; step < steps(); ++step)
      previous.middleRows(begin(step), rows(step)) = tokens.middleRows(begin(step - 1), rows(step));
    return previous;
  }

 private:
  const int padded_rows_;
  std::vector<int> order_;   // rows of the batch, the longest first
  std::vector<int> begins_;  // of each step's block of tokens, and the number of tokens
  std::vector<int> padded_;  // the place of each token in the layout
};

// The parameters, or their gradients, in cuDNN's order. Its gates are input, forget, cell, output; or reset, update,
// candidate.
struct Params {
  Params(float* data, const Model& model)
      : input(data, model.gate_units(), model.features),
        recurrent(data + input.size(), model.gate_units(), model.units),
        input_bias(recurrent.data() + recurrent.size(), model.gate_units()),
        recurrent_bias(input_bias.data() + input_bias.size(), model.gate_units()) {}

  Map input, recurrent;
  Eigen::Map<Eigen::RowVectorXf> input_bias, recurrent_bias;
};

// Calls a function with a null pointer of the type of a tensor's numbers.
template <typename Function>
void WithType(DataType type, Function function) {
  if (type == tensorflow::DT_HALF) function(static_cast<Eigen::half*>(nullptr));
  else if (type == tensorflow::DT_BFLOAT16) function(static_cast<Eigen::bfloat16*>(nullptr));
  else function(static_cast<float*>(nullptr));
}

Matrix ToMatrix(const Tensor& tensor, int64_t columns) {
  Matrix matrix(tensor.NumElements() / columns, columns);
  WithType(tensor.dtype(), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    matrix = Eigen::Map<const MatrixOf<T>>(tensor.flat<T>().data(), matrix.rows(), columns).template cast<float>();
  });
  return matrix;
}

void ToTensor(const Matrix& matrix, Tensor* tensor) {
  WithType(tensor->dtype(), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    Eigen::Map<MatrixOf<T>>(tensor->flat<T>().data(), matrix.rows(), matrix.cols()) = matrix.template cast<T>();
  });
}

// Computes all steps. inputs: [tokens, features]. h, c: the first states, sorted; they become the last ones.
// kept: [tokens, model.kept()] is written. Returns the outputs, [tokens, units].
Matrix Forward(const Model& model, const Packing& packing, const Params& params, const Matrix& inputs, Matrix& h,
               Matrix& c, Map kept) {
  const int units = model.units;
  Matrix outputs(packing.tokens(), units);
  auto projected = kept.leftCols(model.gate_units());
  projected.noalias() = inputs * params.input.transpose();
  projected.rowwise() += params.input_bias;
  for (int step = 0; step < packing.steps(); ++step) {
    const int begin = packing.begin(step), rows = packing.rows(step);
    const auto gate = [&](int number) { return kept.block(begin, number * units, rows, units).array(); };
    auto h_now = h.topRows(rows).array();
    Matrix product = h.topRows(rows) * params.recurrent.transpose();
    product.rowwise() += params.recurrent_bias;
    const auto of_product = [&](int number) { return product.middleCols(number * units, units).array(); };
    if (model.lstm) {
      auto c_now = c.topRows(rows).array();
      for (int number : {0, 1, 3}) gate(number) = (gate(number) + of_product(number)).logistic();
      gate(2) = (gate(2) + of_product(2)).tanh();
      c_now = gate(1) * c_now + gate(0) * gate(2);
      gate(4) = c_now;
      h_now = gate(3) * c_now.tanh();
    } else {
      for (int number : {0, 1}) gate(number) = (gate(number) + of_product(number)).logistic();
      gate(3) = of_product(2);
      gate(2) = (gate(2) + gate(0) * gate(3)).tanh();
      h_now = gate(2) + gate(1) * (h_now - gate(2));
    }
    outputs.middleRows(begin, rows) = h.topRows(rows);
  }
  return outputs;
}

// What the backward kernel gets, packed and sorted.
struct Saved {
  Matrix inputs, previous_h, previous_c;  // [tokens, n] each; without previous_c for a GRU
  Map kept;
};

// Computes the gradients of all steps. dh, dc: those of the last states, sorted; they become those of the first ones.
// d_outputs: [tokens, units]. d_gates: workspace, [tokens, gates * units]. d_params is written. Returns those of the
// inputs, [tokens, features].
Matrix Backward(const Model& model, const Packing& packing, const Params& params, const Saved& saved,
                const Matrix& d_outputs, Matrix& dh, Matrix& dc, Map d_gates, Params d_params) {
  const int units = model.units;
  // Those of the recurrent product and its bias differ from those of the inputs' in a GRU's candidate alone.
  Matrix of_candidate(model.lstm ? 0 : packing.tokens(), units);
  for (int step = packing.steps() - 1; step >= 0; --step) {
    const int begin = packing.begin(step), rows = packing.rows(step);
    const auto gate = [&](int number) { return saved.kept.block(begin, number * units, rows, units).array(); };
    const auto d_gate = [&](int number) { return d_gates.block(begin, number * units, rows, units).array(); };
    const auto of_step = [&](const auto& tokens) { return tokens.middleRows(begin, rows).array(); };
    auto dh_now = dh.topRows(rows).array();
    dh_now += of_step(d_outputs);
    if (model.lstm) {
      auto dc_now = dc.topRows(rows).array();
      const Matrix tanh_c = gate(4).tanh();
      d_gate(3) = dh_now * tanh_c.array() * gate(3) * (1 - gate(3));
      dc_now += dh_now * gate(3) * (1 - tanh_c.array().square());
      d_gate(0) = dc_now * gate(2) * gate(0) * (1 - gate(0));
      d_gate(1) = dc_now * of_step(saved.previous_c) * gate(1) * (1 - gate(1));
      d_gate(2) = dc_now * gate(0) * (1 - gate(2).square());
      dc_now *= gate(1);
      dh.topRows(rows).noalias() = d_gates.middleRows(begin, rows) * params.recurrent;
    } else {
      d_gate(1) = dh_now * (of_step(saved.previous_h) - gate(2)) * gate(1) * (1 - gate(1));
      d_gate(2) = dh_now * (1 - gate(1)) * (1 - gate(2).square());
      d_gate(0) = d_gate(2) * gate(3) * gate(0) * (1 - gate(0));
      of_candidate.middleRows(begin, rows) = d_gate(2) * gate(0);
      dh_now *= gate(1);
      dh.topRows(rows).noalias() += d_gates.block(begin, 0, rows, 2 * units) * params.recurrent.topRows(2 * units);
      dh.topRows(rows).noalias() += of_candidate.middleRows(begin, rows) * params.recurrent.bottomRows(units);
    }
  }
  d_params.input.noalias() = d_gates.transpose() * saved.inputs;
  d_params.input_bias = d_gates.colwise().sum();
  Matrix d_inputs = d_gates * params.input;
  if (!model.lstm) d_gates.rightCols(units) = of_candidate;
  d_params.recurrent.noalias() = d_gates.transpose() * saved.previous_h;
  d_params.recurrent_bias = d_gates.colwise().sum();
  return d_inputs;
}

// The status of a function of cuDNN that TensorFlow calls before the kernel.
absl::Status BadParam(const std::string& function) {
  return absl::UnknownError(absl::StrCat("CUDNN_STATUS_BAD_PARAM\nin cudnn_rnn.cc: '", function, "'"));
}

absl::Status Mismatch(const char* name, const Tensor& tensor) {
  return absl::InvalidArgumentError(absl::StrCat("Invalid ", name, " shape: ", tensor.shape().DebugString()));
}

// What both kernels have in common: attributes, checks and the status of a failure.
class RnnKernel : public StreamKernel {
 public:
  explicit RnnKernel(OpKernelConstruction* construction) : StreamKernel(construction) {
    std::string mode;
    OP_REQUIRES_OK(construction, construction->GetAttr("rnn_mode", &mode));
    OP_REQUIRES_OK(construction, construction->GetAttr("time_major", &time_major_));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type_));
    lstm_ = mode == "lstm";
    OP_REQUIRES(construction, lstm_ || mode == "gru", Unimplemented("rnn_mode=" + mode));
    OP_REQUIRES(construction, type_ != tensorflow::DT_DOUBLE, Unimplemented("T=double"));
    Require(construction, "input_mode", std::string("linear_input"));
    Require(construction, "direction", std::string("unidirectional"));
    Require(construction, "dropout", 0.0f);
    Require(construction, "num_proj", 0);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Model model{lstm_, time_major_};
    OP_REQUIRES_OK_ASYNC(context, Check(context, &model), done);
    // The spaces are TensorFlow's.
    const std::string failure = absl::StrFormat(
        "Failed to call %s with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: %d, 0, 0 , "
        "[num_layers, input_size, num_units, dir_count, max_seq_length, batch_size, cell_num_units]: "
        "[1, %d, %d, 1, %d, %d, %d] ",
        Function(), lstm_ ? 2 : 3, model.features, model.units, model.steps, model.rows, lstm_ ? model.units : 0);
    const auto compute = [=] { context->SetStatus(Compute(context, model, failure)); };
    LaunchKernel(context, std::move(done), type_string(), compute, failure);
  }

 protected:
  virtual const char* Function() const = 0;

  // Runs on the stream's thread. failure: the text of the status if cuDNN fails, as it does without memory of its own.
  virtual absl::Status Compute(OpKernelContext* context, const Model& model, const std::string& failure) = 0;

 private:
  // Refuses all values of an attribute but one.
  template <typename Value>
  void Require(OpKernelConstruction* construction, const char* name, const Value& only) {
    Value value;
    OP_REQUIRES_OK(construction, construction->GetAttr(name, &value));
    OP_REQUIRES(construction, value == only, Unimplemented(absl::StrCat(name, "=", value)));
  }

  absl::Status Unimplemented(const std::string& what) const {
    return absl::UnimplementedError(absl::StrCat("the stand-in GPU's ", type_string(), " has no ", what));
  }

  // Completes a model.
  absl::Status Check(OpKernelContext* context, Model* model) const {
    const Tensor &input = context->input(0), &h = context->input(1), &c = context->input(2);
    const Tensor &params = context->input(3), &lengths = context->input(4);
    if (input.dims() != 3) return absl::InvalidArgumentError("RNN input must be a 3-D vector.");
    if (h.dims() != 3) return absl::InvalidArgumentError("RNN input_h must be a 3-D vector.");
    const int layers = h.dim_size(time_major_ ? 0 : 1);
    if (layers != 1) return Unimplemented(absl::StrCat(layers, " layers"));
    model->steps = input.dim_size(time_major_ ? 0 : 1);
    model->rows = input.dim_size(time_major_ ? 1 : 0);
    model->features = input.dim_size(2);
    model->units = h.dim_size(2);
    model->type = type_;
    if (h.shape() != model->h()) return Mismatch("input_h", h);
    if (lstm_ && c.shape() != model->c()) return Mismatch("input_c", c);
    if (params.NumElements() != model->params()) return Mismatch("params", params);
    if (lengths.shape() != TensorShape({model->rows})) return Mismatch("sequence_lengths", lengths);
    if (model->steps <= 0) return absl::InvalidArgumentError("max_seq_length <= 0");
    if (!input.NumElements() || !h.NumElements()) return BadParam("cudnnSetTensorNdDescriptor");
    const auto values = lengths.vec<int>();
    for (int row = 0; row < model->rows; ++row)
      if (values(row) <= 0 || values(row) > model->steps) return BadParam("cudnnSetRNNDataDescriptor");
    return absl::OkStatus();
  }

  bool lstm_, time_major_;
  DataType type_;
};

// The numbers of a model's reserved space, for each token.
Map Kept(const Model& model, const Packing& packing, const Tensor& reserved) {
  auto* numbers = reinterpret_cast<float*>(const_cast<char*>(reserved.tensor_data().data()));
  return Map(numbers, packing.tokens(), model.kept());
}

class ForwardKernel : public RnnKernel {
 public:
  explicit ForwardKernel(OpKernelConstruction* construction) : RnnKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("is_training", &is_training_));
  }

 protected:
  const char* Function() const override { return "DoRnnForward"; }

  absl::Status Compute(OpKernelContext* context, const Model& model, const std::string& failure) override {
    const Packing packing(model, context->input(4));
    const TensorShape shape = model.reserved(packing.tokens());
    Tensor *output, *output_h, *output_c, *reserved, *host_reserved, workspace;
    TF_RETURN_IF_ERROR(context->allocate_output(0, model.output(), &output));
    TF_RETURN_IF_ERROR(context->allocate_output(1, model.h(), &output_h));
    TF_RETURN_IF_ERROR(context->allocate_output(2, model.c(), &output_c));
    TF_RETURN_IF_ERROR(context->allocate_output(4, {}, &host_reserved));
    absl::Status status = context->allocate_output(3, is_training_ ? shape : TensorShape({}), &reserved);
    if (!is_training_) status.Update(context->allocate_temp(model.type, shape, &workspace));
    if (!status.ok()) return absl::InternalError(failure);
    Matrix params = ToMatrix(context->input(3), 1), h = packing.Sorted(ToMatrix(context->input(1), model.units)), c;
    if (model.lstm) c = packing.Sorted(ToMatrix(context->input(2), model.units));
    const Matrix inputs = packing.Tokens(ToMatrix(context->input(0), model.features));
    const Matrix outputs = Forward(model, packing, Params(params.data(), model), inputs, h, c,
                                   Kept(model, packing, is_training_ ? *reserved : workspace));
    ToTensor(packing.Padded(outputs), output);
    ToTensor(packing.Unsorted(h), output_h);
    if (model.lstm) ToTensor(packing.Unsorted(c), output_c);
    return absl::OkStatus();
  }

 private:
  bool is_training_;
};

class BackwardKernel : public RnnKernel {
 public:
  using RnnKernel::RnnKernel;

 protected:
  const char* Function() const override { return "DoRnnBackward"; }

  absl::Status Compute(OpKernelContext* context, const Model& model, const std::string& failure) override {
    const Packing packing(model, context->input(4));
    const Tensor &output = context->input(5), &d_output = context->input(8), &reserved = context->input(11);
    const Tensor &dh_last = context->input(9), &dc_last = context->input(10);
    if (output.shape() != model.output()) return Mismatch("output", output);
    if (d_output.shape() != model.output()) return Mismatch("output_backprop", d_output);
    if (dh_last.shape() != model.h()) return Mismatch("output_h_backprop", dh_last);
    if (model.lstm && dc_last.shape() != model.c()) return Mismatch("output_c_backprop", dc_last);
    if (reserved.shape() != model.reserved(packing.tokens())) return absl::InternalError(failure);
    Tensor *d_input, *dh_first, *dc_first, *d_parameters, workspace;
    TF_RETURN_IF_ERROR(context->allocate_output(0, context->input(0).shape(), &d_input));
    TF_RETURN_IF_ERROR(context->allocate_output(1, model.h(), &dh_first));
    TF_RETURN_IF_ERROR(context->allocate_output(2, model.c(), &dc_first));
    TF_RETURN_IF_ERROR(context->allocate_output(3, context->input(3).shape(), &d_parameters));
    const TensorShape shape({packing.tokens(), model.gate_units()});
    if (!context->allocate_temp(tensorflow::DT_FLOAT, shape, &workspace).ok()) return absl::InternalError(failure);
    const auto states = [&](const Tensor& tensor) { return packing.Sorted(ToMatrix(tensor, model.units)); };
    const auto tokens = [&](const Tensor& tensor) { return packing.Tokens(ToMatrix(tensor, tensor.dim_size(2))); };
    const Map kept = Kept(model, packing, reserved);
    const Saved saved{tokens(context->input(0)), packing.Previous(tokens(output), states(context->input(1))),
                      model.lstm ? packing.Previous(kept.rightCols(model.units), states(context->input(2))) : Matrix(),
                      kept};
    Matrix params = ToMatrix(context->input(3), 1), d_params(params.rows(), 1);
    Matrix dh = states(dh_last), dc = model.lstm ? states(dc_last) : Matrix();
    const Matrix d_inputs =
        Backward(model, packing, Params(params.data(), model), saved, tokens(d_output), dh, dc,
                 Map(workspace.flat<float>().data(), packing.tokens(), model.gate_units()),
                 Params(d_params.data(), model));
    ToTensor(packing.Padded(d_inputs), d_input);
    ToTensor(packing.Unsorted(dh), dh_first);
    if (model.lstm) ToTensor(packing.Unsorted(dc), dc_first);
    ToTensor(d_params, d_parameters);
    return absl::OkStatus();
  }
};

template <typename Kernel>
OpKernel* New(OpKernelConstruction* construction) {
  return new Kernel(construction);
}

}  // namespace

KernelFactory CudnnKernel(const std::string& operation) {
  if (operation == "CudnnRNNV3") return New<ForwardKernel>;
  if (operation == "CudnnRNNBackpropV3") return New<BackwardKernel>;
  return nullptr;
}

}  // namespace standin
