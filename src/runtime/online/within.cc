#include "runtime/online/within.h"

#include <exception>
#include <utility>

namespace reprise::runtime::internal::online {

Within::Within(Budget budget, c10::Device device)
    : options_{.budget = std::move(budget), .device = device},
      heuristic_(heuristic_named(options_.heuristic)) {
  check_options(options_, "a capture");
}

void Within::begin() {
  under_way_.emplace();
  try {
    session_.emplace(options_, heuristic_, /*undoes=*/false);
  } catch (...) {
    under_way_.reset();
    throw;
  }
}

void Within::end() {
  session_->settle();
  evictions_ = session_->evictions();
  session_.reset();
  under_way_.reset();
}

std::exception_ptr Within::reason_of(const std::exception_ptr& thrown) const {
  return session_ ? session_->reason_of(thrown) : thrown;
}

void Within::run(c10::function_ref<void()> body) {
  begin();
  std::exception_ptr reason;
  try {
    body();
    end();
  } catch (...) {
    reason = reason_of(std::current_exception());
  }
  session_.reset();
  under_way_.reset();
  if (reason) std::rethrow_exception(reason);
}

bool Within::is_present(const c10::Storage& storage) const {
  const ValuePtr value = session_ ? session_->value_in(storage) : nullptr;
  return !value || value->present();
}

int64_t Within::made_again(const c10::Storage& storage) const {
  const ValuePtr value = session_ ? session_->value_in(storage) : nullptr;
  return value ? value->made_again : 0;
}

int64_t Within::own_references(const c10::Storage& storage) const {
  const ValuePtr value = session_ ? session_->value_in(storage) : nullptr;
  return value && value->kept.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl() ? 1 : 0;
}

Needed::Needed(Within* within, const std::vector<c10::Storage>& storages) : within_(within) {
  if (within_ == nullptr) return;
  try {
    for (const c10::Storage& storage : storages) {
      const ValuePtr value = within_->session_->value_in(storage);
      if (!value) continue;
      within_->session_->need(value);
      values_.push_back(value);
    }
  } catch (...) {
    for (const ValuePtr& value : values_) within_->session_->let_go(*value);
    throw;
  }
}

Needed::~Needed() {
  for (const ValuePtr& value : values_) within_->session_->let_go(*value);
}

Unseen::Unseen(Within* within) {
  if (within == nullptr) return;
  busy_.emplace(*within->session_);
  silent_.emplace(/*is_enabled=*/false);
}

}  // namespace reprise::runtime::internal::online
