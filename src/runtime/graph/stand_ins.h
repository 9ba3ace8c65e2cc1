// Runs a step whose values have bytes only while one operation uses them, and stand-ins for the bytes
// that the values have in training.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "reprise/model/units.h"
#include "runtime/device/reserved_space.h"
#include "runtime/device/room.h"
#include "runtime/step/surroundings.h"

namespace reprise::runtime::internal::graph {

// Returns memory with numbers of this type. Floating-point numbers lie between 0 and 1, where
// probabilities, variances and operands of logarithms may lie. All others are 0, which is an index of
// every tensor. The memory has the same bytes in each call, and no random generator advances.
c10::Storage stand_in(int64_t bytes, at::ScalarType dtype, c10::Device device);

// In StandIns each operation runs with its own kernel, on stand-ins for the values that it reads. When
// it has ended, these values and its results have no bytes any more. So a step runs in the memory of
// the operation that needs most, beside what is there before the step. Operators, shapes, strides and
// the memory that tensors share are those of plain training. Numbers are not.
//
// A step cannot run so if it depends on numbers that it has computed: it reads one on the host, or its
// code takes the pointer of a value. run() hands on an exception then.
class StandIns final : public step::Surroundings, private device::RoomMaker {
 public:
  // The budget covers all bytes of the device, as in CaptureOptions. On the CPU somebody else lets the
  // allocator enforce it. On other devices it is compared with the allocator's count before each
  // operation and behind it. Throws InputError for a share.
  StandIns(const Budget& budget, c10::Device device);

  void run(c10::function_ref<void()> body) override;
  bool is_present(const c10::Storage& storage) const override;
  int64_t made_again(const c10::Storage& storage) const override;
  int64_t own_references(const c10::Storage&) const override { return 0; }
  bool holds_values() const override { return false; }
  bool computes() const override { return false; }
  void take(const at::Tensor& tensor) override;
  bool is_stand_in(const c10::Storage& storage) const override;
  std::vector<c10::Storage> lend(const c10::OperatorHandle& op,
                                 c10::ArrayRef<c10::IValue> arguments) override;
  void take_back(const c10::OperatorHandle& op, const std::vector<c10::Storage>& operands,
                 c10::ArrayRef<c10::IValue> results) override;

  // Throws BudgetError if the device has more bytes live than the budget, or had since the last call.
  void require_budget(int64_t more = 0);
  // Names an operation that run() runs itself, for messages.
  void begins(const std::string& operation) { operation_ = operation; }
  int64_t budget() const { return budget_; }
  // Says whether a request was refused because of the budget.
  bool is_refused() const { return refused_; }

 private:
  struct Value {
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;  // keeps the address from being used again
    int users = 0;        // operations under way that use it
    int64_t fills = 0;    // how often it got bytes
    bool present = true;  // whether it has bytes
    bool stays = false;   // The program may write its bytes by a pointer.
  };

  std::string make_room(int64_t bytes) override;
  Value& note(const c10::Storage& storage);
  Value* find(const c10::Storage& storage);
  const Value* find(const c10::Storage& storage) const;
  void give_bytes(Value& value, const c10::Storage& storage, at::ScalarType dtype);
  void give_address(const c10::Storage& storage);
  void drop(Value& value, const c10::Storage& storage);
  void sweep();

  const int64_t budget_;
  const c10::Device device_;
  std::unordered_map<const void*, Value> values_;  // by storage
  std::vector<std::unique_ptr<device::ReservedSpace>> reserved_;
  std::string operation_;       // the last one that began
  uint64_t begun_ = 0;          // the CPU allocator's serial number when the run began
  std::exception_ptr failure_;  // of this run
  bool refused_ = false;
  size_t calls_ = 0;
};

}  // namespace reprise::runtime::internal::graph
