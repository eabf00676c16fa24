// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/verify_attn.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

// Argument checks of the torch ops. Each failure is one line: op, argument, rule, value got.
namespace kdtree::op {

using Tensor = torch::stable::Tensor;
using MaybeTensor = std::optional<torch::stable::Tensor>;
using torch::headeronly::ScalarType;

// Prints as "[2, 3]". Made for each call, put into words only where a check failed.
struct ShapeOf {
  const Tensor& tensor;
};
inline ShapeOf shape_of(const Tensor& tensor) { return {tensor}; }
std::ostream& operator<<(std::ostream& out, const ShapeOf& shape);

class Checker {
 public:
  // `like` gives the device that every other tensor must be on.
  Checker(const char* op, const Tensor& like) : op_(op), like_(like) {}

  template <typename Got>
  void require(bool holds, const char* argument, const char* rule, const Got& got) const {
    if (holds) return;
    std::ostringstream line;
    line << "kdtree." << op_ << ": " << argument << ' ' << rule << ", got " << got;
    throw std::runtime_error(line.str());
  }

  void on_device(const Tensor& tensor, const char* argument) const;
  void one_dim(const Tensor& tensor, const char* argument, int64_t at_least) const;
  void type(const Tensor& tensor, const char* argument,
            std::initializer_list<ScalarType> allowed) const;

  // Bits of an index array: int32 or int64, one-dimensional, contiguous, of at least that many
  // elements.
  int32_t index(const Tensor& tensor, const char* argument, int64_t at_least) const;

  // enum kdtree_dtype of q-like data.
  int32_t data_type(const Tensor& tensor, const char* argument) const;

  // [tokens, heads, 512] or [tokens, heads * 512], heads and elements contiguous; returns the token
  // stride.
  int64_t output(const Tensor& tensor, const char* argument, const Tensor& q, int64_t tokens,
                 int64_t heads) const;

  void workspace(const Tensor& tensor, int64_t needed) const;

  // Throws if a function of the C ABI refused.
  void status(int64_t status) const;

  bool on_cpu() const { return like_.is_cpu(); }

 private:
  const char* op_;
  const Tensor& like_;
};

template <typename T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}
template <typename T>
T* pointer(const MaybeTensor& tensor) {
  return tensor.has_value() ? static_cast<T*>(tensor->data_ptr()) : nullptr;
}

}  // namespace kdtree::op
