#include "runtime/online/values.h"

#include <algorithm>
#include <string>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::online {
namespace {

const std::string kEvicted =
    "online mode has evicted the memory of this tensor. Code that takes pointers outside of "
    "operators must do so right behind an operation on the tensor (x = x.detach()), or be a "
    "registered operator";

// Gives a storage other memory, and frees its own.
void set_memory(c10::StorageImpl& storage, c10::DataPtr memory) {
  storage.set_data_ptr_noswap(std::move(memory));
}

c10::DataPtr no_memory(c10::Device device) { return {nullptr, device}; }

}  // namespace

Values::~Values() {
  for (const auto& [address, value] : at_home_) {
    if (value->home.expired()) continue;
    disarm(*value);
    if (value->resident) continue;
    poison(*value,
           "this tensor belongs to a step in online mode that failed, and its memory is gone");
  }
}

ValuePtr Values::find(const c10::StorageImpl* storage) const {
  const auto found = at_home_.find(storage);
  return found == at_home_.end() ? nullptr : found->second;
}

ValuePtr Values::insert(const c10::Storage& storage) {
  auto value = std::make_shared<Value>(storage);
  value->serial = next_serial_++;
  at_home_[value->address] = value;
  return value;
}

ValuePtr Values::of(const c10::Storage& storage) {
  const auto found = at_home_.find(storage.unsafeGetStorageImpl());
  if (found == at_home_.end()) {
    ValuePtr value = insert(storage);
    value->outside = true;
    return value;
  }
  if (found->second->bytes == static_cast<int64_t>(storage.nbytes())) return found->second;
  resized(found->second);
  return at_home_.at(storage.unsafeGetStorageImpl());
}

ValuePtr Values::add(const c10::Storage& storage) { return insert(storage); }

// The old bytes are gone. A call that needs them and cannot make them again fails.
void Values::resized(const ValuePtr& old) { renew(old); }

ValuePtr Values::renew(const ValuePtr& old) {
  const c10::Storage storage(old->home.lock());
  if (!storage) throw InternalError("a storage is written that is gone");
  disarm(*old);
  ValuePtr next = insert(storage);
  next->outside = old->outside;
  next->stays = old->stays;
  next->shared = old->shared;
  next->writes = old->writes + 1;
  old->current = old->resident = false;
  old->blank_call.reset();
  old->kept = c10::Storage();
  return next;
}

void Values::pin(Value& value) {
  if (value.pins++ == 0) disarm(value);
}

void Values::unpin(Value& value) {
  if (--value.pins == 0) arm(value);
}

void Values::arm(Value& value) {
  if (!value.current || value.stays || value.outside || value.armed || value.pins > 0 ||
      !value.resident || value.home.expired()) {
    return;
  }
  if (device::has_touch_function(*value.address)) {
    hold(value);  // The storage shares its memory with another one until somebody writes.
    return;
  }
  device::set_touch_function(*value.address, touched_);
  value.armed = true;
}

void Values::disarm(Value& value) {
  if (std::exchange(value.armed, false)) device::clear_touch_function(*value.address);
}

void Values::hold(Value& value) {
  disarm(value);
  value.stays = true;
  anchor(value);
}

void Values::anchor(Value& value) {
  const bool was_makeable = value.can_be_made() || value.blank_call;
  if (notes_anchored_ && was_makeable) anchored_.push_back({value.serial, value.home});
  value.maker.reset();
  value.blank_call.reset();
  std::erase_if(value.readers, [](const auto& reader) { return reader.expired(); });
  if (!value.readers.empty()) keep_for_calls(value);
}

void Values::keep_for_calls(Value& value) {
  if (value.kept || !value.current || value.can_be_made()) return;
  if (auto home = value.home.lock()) value.kept = c10::Storage(std::move(home));
}

void Values::evict(Value& value) {
  value.resident = false;
  if (!value.current) {
    value.kept = c10::Storage();
    return;
  }
  if (!value.kept) {
    disarm(value);
    hide(value);
  } else {
    value.kept = c10::Storage();
  }
}

void Values::place(const ValuePtr& value, c10::Storage bytes) {
  const auto home = value->current ? value->home.lock() : nullptr;
  value->resident = true;
  if (!home) {
    value->kept = std::move(bytes);
    if (!std::exchange(value->listed, true)) apart_.push_back(value);
    return;
  }
  device::give_address_again(*home);
  set_memory(*home, std::move(bytes.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  arm(*value);
}

void Values::move_home(const c10::Storage& from, const c10::Storage& to) {
  c10::StorageImpl& old = *from.unsafeGetStorageImpl();
  const auto found = at_home_.find(&old);
  const ValuePtr value = found == at_home_.end() ? nullptr : found->second;
  if (value) {
    disarm(*value);
    at_home_.erase(found);
    value->home = to.getWeakStorageImpl();
    value->address = to.unsafeGetStorageImpl();
    at_home_[value->address] = value;
  }
  device::give_address_again(*to.unsafeGetStorageImpl());
  set_memory(*to.unsafeGetStorageImpl(), std::move(old._mutable_data_ptr_no_checks()));
  set_memory(old, no_memory(from.device()));
  if (value) arm(*value);
}

c10::Storage Values::storage_of(const Value& value) const {
  if (value.kept) return value.kept;
  auto home = value.home.lock();
  if (!home || !value.present()) throw InternalError("the bytes of a value are not there");
  return c10::Storage(std::move(home));
}

c10::Storage Values::stand_in(const Value& value) {
  if (reserved_.empty() || reserved_.back()->bytes() < value.bytes) {
    reserved_.push_back(std::make_unique<device::ReservedSpace>(2 * value.bytes));
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(value.bytes),
                      c10::DataPtr(reserved_.back()->address(), value.device));
}

void Values::expose(Value& value) {
  if (value.resident || !value.current || value.home.expired()) return;
  stand_in(value);
  device::give_address_again(*value.address);
  set_memory(*value.address, {reserved_.back()->address(), value.device});
}

void Values::hide(Value& value) {
  if (value.resident || !value.current || value.home.expired()) return;
  set_memory(*value.address, no_memory(value.device));
  poison(value, kEvicted);
}

void Values::poison(Value& value, const std::string& reason) {
  value.address->release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
}

void Values::cure(Value& value) {
  device::give_address_again(*value.address);
  hide(value);
}

void Values::sweep() {
  for (auto entry = at_home_.begin(); entry != at_home_.end();) {
    Value& value = *entry->second;
    if (value.home.expired()) {
      value.resident = value.resident && value.kept;
      value.blank_call.reset();
      entry = at_home_.erase(entry);
      continue;
    }
    // Nothing but the table knows it, so no call needs it.
    if (value.kept && !value.can_be_made() && entry->second.use_count() == 1) {
      value.kept = c10::Storage();
    }
    ++entry;
  }
  std::erase_if(apart_, [](const std::weak_ptr<Value>& weak) {
    const ValuePtr value = weak.lock();
    if (value && value->kept) return false;
    if (value) value->listed = false;
    return true;
  });
}

std::vector<ValuePtr> Values::held() const {
  std::vector<ValuePtr> all;
  for (const auto& [address, value] : at_home_) {
    if (!value->home.expired()) all.push_back(value);
  }
  std::sort(all.begin(), all.end(),
            [](const ValuePtr& a, const ValuePtr& b) { return a->serial < b->serial; });
  return all;
}

}  // namespace reprise::runtime::internal::online
