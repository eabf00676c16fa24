// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <algorithm>

namespace kdtree::op {

std::ostream& operator<<(std::ostream& out, const ShapeOf& shape) {
  out << '[';
  for (int64_t i = 0; i < shape.tensor.dim(); ++i)
    out << (i == 0 ? "" : ", ") << shape.tensor.size(i);
  return out << ']';
}

void Checker::on_device(const Tensor& tensor, const char* argument) const {
  require(
      tensor.is_cpu() == like_.is_cpu() && tensor.get_device_index() == like_.get_device_index(),
      argument, "must be on the device of the first argument",
      tensor.is_cpu() ? "the CPU" : "another GPU");
}

void Checker::one_dim(const Tensor& tensor, const char* argument, int64_t at_least) const {
  on_device(tensor, argument);
  require(tensor.dim() == 1, argument, "must have one dimension", shape_of(tensor));
  require(tensor.numel() == 0 || tensor.stride(0) == 1, argument, "must be contiguous",
          tensor.stride(0));
  if (tensor.numel() < at_least)
    require(false, argument,
            ("must have at least " + std::to_string(at_least) + " elements").c_str(),
            tensor.numel());
}

void Checker::type(const Tensor& tensor, const char* argument,
                   std::initializer_list<ScalarType> allowed) const {
  const ScalarType got = tensor.scalar_type();
  if (std::find(allowed.begin(), allowed.end(), got) != allowed.end()) return;
  std::ostringstream rule;
  rule << "must be of type";
  const char* separator = " ";
  for (const ScalarType one : allowed) {
    rule << separator << one;
    separator = " or ";
  }
  require(false, argument, rule.str().c_str(), got);
}

int32_t Checker::index(const Tensor& tensor, const char* argument, int64_t at_least) const {
  one_dim(tensor, argument, at_least);
  type(tensor, argument, {ScalarType::Int, ScalarType::Long});
  return tensor.scalar_type() == ScalarType::Long ? 64 : 32;
}

int32_t Checker::data_type(const Tensor& tensor, const char* argument) const {
  if (on_cpu())
    type(tensor, argument, {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float});
  else
    type(tensor, argument, {ScalarType::BFloat16, ScalarType::Half});
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16:
      return KDTREE_BF16;
    case ScalarType::Half:
      return KDTREE_FP16;
    default:
      return KDTREE_FP32;
  }
}

int64_t Checker::output(const Tensor& tensor, const char* argument, const Tensor& q, int64_t tokens,
                        int64_t heads) const {
  on_device(tensor, argument);
  type(tensor, argument, {q.scalar_type()});
  const bool flat = tensor.dim() == 2 && tensor.size(1) == heads * KDTREE_V_DIM;
  const bool split = tensor.dim() == 3 && tensor.size(1) == heads && tensor.size(2) == KDTREE_V_DIM;
  require((flat || split) && tensor.size(0) == tokens, argument,
          "must be [tokens, heads, 512] for q's tokens and heads", shape_of(tensor));
  require(tensor.stride(tensor.dim() - 1) == 1 &&
              (flat || heads == 1 || tensor.stride(1) == KDTREE_V_DIM),
          argument, "must have contiguous heads", tensor.stride(1));
  return tensor.stride(0);
}

void Checker::workspace(const Tensor& tensor, int64_t needed) const {
  on_device(tensor, "workspace");
  type(tensor, "workspace", {ScalarType::Byte});
  require(tensor.is_contiguous(), "workspace", "must be contiguous", tensor.stride(0));
  if (tensor.numel() < needed)
    require(false, "workspace", ("must have at least " + std::to_string(needed) + " bytes").c_str(),
            tensor.numel());
}

void Checker::status(int64_t status) const {
  if (status >= 0 && status == KDTREE_OK) return;
  throw std::runtime_error(std::string("kdtree.") + op_ + ": " +
                           kdtree_status_string(static_cast<int>(status)));
}

}  // namespace kdtree::op
