// These are the values that are at home in storages of a step, and what may happen to their bytes.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/device/compat.h"
#include "runtime/device/reserved_space.h"
#include "runtime/online/record.h"

namespace reprise::runtime::internal::online {

// Values has the values of a step, by storage. An evicted storage has no memory, and whoever asks
// for its pointer gets an exception with a text. A storage that may be evicted tells when code
// outside of operators takes its pointer to write (`touched`); it does not while it is pinned.
//
// Values are on one thread. The destructor lets go of all storages; values that are still evicted
// then can never be read again.
class Values {
 public:
  explicit Values(device::TouchFunction touched) : touched_(touched) {}
  ~Values();
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  // Returns the newest value of a storage. Memory that is seen for the first time is from outside.
  ValuePtr of(const c10::Storage& storage);
  // Returns the newest value of a storage, or null if it was never seen.
  ValuePtr find(const c10::StorageImpl* storage) const;
  // Adds the value of a storage that an operator has just made.
  ValuePtr add(const c10::Storage& storage);
  // Returns the next version of a value, whose bytes were written over. It has no maker.
  ValuePtr renew(const ValuePtr& old);

  void pin(Value& value);
  void unpin(Value& value);
  // Never evicts the value from now on, and forgets how it was made, with all that only that needs.
  void hold(Value& value);
  // Forgets how a value was made whose bytes others may have written.
  void anchor(Value& value);
  // Keeps the memory of a value that cannot be made again, because a call may need it.
  void keep_for_calls(Value& value);

  void evict(Value& value);
  // Gives the value the memory of `bytes`, in which it was made again.
  void place(const ValuePtr& value, c10::Storage bytes);
  // Lets another storage be the home of the newest value of this one, and gives it the bytes.
  void move_home(const c10::Storage& from, const c10::Storage& to);
  // Returns a storage with the bytes of a value that is present.
  c10::Storage storage_of(const Value& value) const;
  // Returns memory for an operand of which only the shape is asked for.
  c10::Storage stand_in(const Value& value);
  // Makes an evicted storage look like memory while an operator asks for its shape, and undoes that.
  void expose(Value& value);
  void hide(Value& value);

  // Lets every access to the storage's memory fail with this text, and undoes that.
  static void poison(Value& value, const std::string& reason);
  void cure(Value& value);

  // Forgets values whose storage is gone, and memory that no call needs any more.
  void sweep();
  // Calls `visit(Value&)` once for each value whose bytes are there.
  template <class Visit>
  void for_each_present(Visit&& visit) {
    for (const auto& [address, value] : at_home_) {
      if (value->resident && !value->home.expired()) visit(*value);
    }
    for (const std::weak_ptr<Value>& weak : apart_) {
      const ValuePtr value = weak.lock();
      if (value && value->kept && value->resident) visit(*value);
    }
  }
  // Calls `visit(const Value&)` for the newest value of each storage that somebody holds.
  template <class Visit>
  void for_each_held(Visit&& visit) const {
    for (const auto& [address, value] : at_home_) {
      if (!value->home.expired()) visit(std::as_const(*value));
    }
  }
  // Returns the newest values of the storages that somebody holds, in the order of the step.
  std::vector<ValuePtr> held() const;

  // An Anchored is a value that can no longer be made again from now on.
  struct Anchored {
    uint64_t serial = 0;
    c10::weak_intrusive_ptr<c10::StorageImpl> home;
  };
  // Notes such values from now on, or no more, until they are taken.
  void note_anchored(bool note) {
    notes_anchored_ = note;
    anchored_.clear();
  }
  std::vector<Anchored> take_anchored() { return std::exchange(anchored_, {}); }

 private:
  ValuePtr insert(const c10::Storage& storage);
  void resized(const ValuePtr& old);
  void arm(Value& value);
  static void disarm(Value& value);

  const device::TouchFunction touched_;
  uint64_t next_serial_ = 0;
  std::unordered_map<const c10::StorageImpl*, ValuePtr> at_home_;
  std::vector<std::weak_ptr<Value>> apart_;  // made again without a home
  bool notes_anchored_ = false;
  std::vector<Anchored> anchored_;
  // Space for operands of which only the shape is asked for. Storages point into the older ones.
  std::vector<std::unique_ptr<device::ReservedSpace>> reserved_;
};

}  // namespace reprise::runtime::internal::online
