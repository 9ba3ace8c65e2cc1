#include "runtime/online/print.h"

namespace reprise::runtime::internal::online {
namespace {

// This is the finalizer of MurmurHash3 (A. Appleby, public domain) as a step of a chain.
uint64_t mixed(uint64_t print, uint64_t word) {
  print = (print ^ word) * 0xff51afd7ed558ccdULL;
  print ^= print >> 33;
  print *= 0xc4ceb9fe1a85ec53ULL;
  return print ^ (print >> 29);
}

uint64_t mixed(uint64_t print, const View& view) {
  const uint64_t kinds = static_cast<uint64_t>(view.dtype) | (view.wrapped_number ? 1U << 8 : 0U) |
                         (view.conjugate ? 1U << 9 : 0U) | (view.negative ? 1U << 10 : 0U) |
                         static_cast<uint64_t>(view.shape.size()) << 16;
  print = mixed(print, kinds);
  print = mixed(print, static_cast<uint64_t>(view.offset));
  for (const int64_t size : view.shape.sizes_arrayref()) {
    print = mixed(print, static_cast<uint64_t>(size));
  }
  for (const int64_t stride : view.shape.strides_arrayref()) {
    print = mixed(print, static_cast<uint64_t>(stride));
  }
  return print;
}

}  // namespace

uint64_t print_behind(uint64_t before, const ObservedCall& call) {
  // An operator has one address for as long as the process knows it.
  uint64_t print = mixed(before, reinterpret_cast<uintptr_t>(&call.facts));
  for (const Operand& operand : call.record->operands) {
    if (!operand.value) {
      print = mixed(print, 0);
      continue;
    }
    print = mixed(print, operand.value->serial + 1);
    print = mixed(print, static_cast<uint64_t>(operand.value->bytes));
    print = mixed(print, operand.view);
  }
  for (const ValuePtr& value : call.fresh) {
    print = mixed(print, value->serial + 1);
    print = mixed(print, static_cast<uint64_t>(value->bytes));
  }
  return print;
}

}  // namespace reprise::runtime::internal::online
