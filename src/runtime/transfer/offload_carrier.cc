#include "runtime/transfer/offload_carrier.h"

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::transfer {

std::vector<bool> moved_by(const Program& program, size_t values) {
  std::vector<bool> moved(values);
  for (const Program::Entry& entry : program.entries()) {
    if (entry.kind != ActionKind::kCopy) continue;
    if (entry.copy.from != 0 && entry.copy.to != 0) {
      throw InputError(
          "this plan copies a value from one memory behind the device to another, which the "
          "runtime does not do");
    }
    moved[entry.copy.value] = true;
  }
  return moved;
}

OffloadCarrier::HostCopy OffloadCarrier::copy_of(const std::vector<Resident>& residents) {
  HostCopy copy;
  for (const Resident& resident : residents) {
    copy.sizes.push_back(resident.bytes);
    copy.bytes += resident.bytes;
    copy.device = resident.storage.device();
  }
  return copy;
}

std::vector<TicketPtr> OffloadCarrier::tickets_of(const std::vector<int64_t>& actions) const {
  std::vector<TicketPtr> tickets;
  for (const int64_t action : actions) {
    const auto found =
        tickets_.find(action);  // There is none for a value that stayed in its place.
    if (found != tickets_.end()) tickets.push_back(found->second);
  }
  return tickets;
}

// In out() and in() the entries stand in their maps before a copy begins. So no copy is under way
// that end() does not know.

void OffloadCarrier::out(const CopyAction& copy) {
  const std::vector<Resident> residents = residency_.residents(copy.value, 0);
  if (residents.empty()) {  // It has no bytes of its own, and is away all the same.
    copies_.insert_or_assign(copy.value, HostCopy{});
    return;
  }
  HostCopy& there = copies_.insert_or_assign(copy.value, copy_of(residents)).first->second;
  std::vector<Block> blocks;
  for (const Resident& resident : residents) {
    blocks.push_back({const_cast<void*>(resident.storage.data()), resident.bytes});
    there.held.push_back(resident.storage);
  }
  TicketPtr& ticket = tickets_[copy.action];
  there.parcel = memory_->place(there.bytes);
  ticket = there.out = memory_->out(std::move(blocks), there.parcel, tickets_of(copy.after));
  moved_.out += Bytes(there.bytes);
}

void OffloadCarrier::in(const CopyAction& copy) {
  auto there = copies_.find(copy.value);
  if (there == copies_.end() || !there->second.parcel) {
    ParcelPtr parcel = residency_.bring(copy.value);
    if (!parcel) return;
    there = copies_.insert_or_assign(copy.value, copy_of(residency_.residents(copy.value, 0))).first;
    there->second.parcel = std::move(parcel);
  }
  const HostCopy& from = there->second;
  std::vector<TicketPtr> after = tickets_of(copy.after);
  if (from.out) after.push_back(from.out);
  Coming& coming = coming_[copy.value];
  coming.blocks.clear();
  std::vector<Block> blocks;
  for (const int64_t size : from.sizes) {
    coming.blocks.push_back(take_memory(from.device, size));
    blocks.push_back({coming.blocks.back().get(), size});
  }
  TicketPtr& ticket = tickets_[copy.action];
  ticket = coming.ticket = memory_->in(from.parcel, std::move(blocks), std::move(after));
  moved_.in += Bytes(from.bytes);
}

void OffloadCarrier::wait(ValueIndex value, int32_t memory) {
  if (memory != 0) {
    const auto there = copies_.find(value);
    if (there == copies_.end() || !there->second.out) return;
    timed([&] { there->second.out->wait(); });
    there->second.held.clear();
    residency_.sent(value, there->second.parcel);
    return;
  }
  const auto found = coming_.find(value);
  if (found == coming_.end()) return;
  timed([&] { found->second.ticket->wait(); });
  residency_.arrive(value, 0, std::move(found->second.blocks));
  coming_.erase(found);
}

void OffloadCarrier::free(ValueIndex value, int32_t memory) {
  if (memory != 0) copies_.erase(value);
}

void OffloadCarrier::end() noexcept {
  for (const auto& [action, ticket] : tickets_) {
    if (ticket) ticket->cancel();
  }
  tickets_.clear();
  coming_.clear();
  copies_.clear();
}

}  // namespace reprise::runtime::internal::transfer
