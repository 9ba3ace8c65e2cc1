#include "runtime/transfer/copies.h"

#include <c10/core/DeviceGuard.h>

#include "reprise/model/errors.h"
#include "runtime/device/stopwatch.h"

namespace reprise::runtime::internal::transfer {

using device::wall_clock;

std::vector<bool> moved_by(const Program& program, size_t values) {
  std::vector<bool> moved(values);
  for (const Program::Entry& entry : program.entries()) {
    if (entry.kind != ActionKind::kCopy) continue;
    if (entry.copy.from != 0 && entry.copy.to != 0) {
      throw InputError(
          "this plan copies a value from one memory behind the device to another, which the "
          "runtime "
          "does not do");
    }
    moved[entry.copy.value] = true;
  }
  return moved;
}

std::vector<TicketPtr> Copies::tickets_of(const std::vector<int64_t>& actions) const {
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

void Copies::out(const CopyAction& copy, std::vector<c10::Storage> storages) {
  OffloadMemory& memory = *memories_.at(copy.to);
  HostCopy& there = host_copies_[{copy.value, copy.to}];
  there = {};
  std::vector<Block> blocks;
  int64_t bytes = 0;
  for (const c10::Storage& storage : storages) {
    const auto size = static_cast<int64_t>(storage.nbytes());
    blocks.push_back({const_cast<void*>(storage.data()), size});
    there.sizes.push_back(size);
    there.device = storage.device();
    bytes += size;
  }
  TicketPtr& ticket = tickets_[copy.action];
  there.held = std::move(storages);
  there.parcel = memory.place(bytes);
  ticket = there.out = memory.out(std::move(blocks), there.parcel, tickets_of(copy.after));
  moved_.out += Bytes(bytes);
}

std::vector<c10::DataPtr> Copies::in(const CopyAction& copy) {
  OffloadMemory& memory = *memories_.at(copy.from);
  const HostCopy& there = host_copies_.at({copy.value, copy.from});
  std::vector<TicketPtr> after = tickets_of(copy.after);
  after.push_back(there.out);
  // An allocator takes memory of the device that is current.
  c10::Allocator* const allocator = c10::GetAllocator(there.device.type());
  const c10::DeviceGuard current(there.device);
  std::vector<c10::DataPtr> taken;
  std::vector<Block> blocks;
  int64_t bytes = 0;
  for (const int64_t size : there.sizes) {
    taken.push_back(allocator->allocate(static_cast<size_t>(size)));
    blocks.push_back({taken.back().get(), size});
    bytes += size;
  }
  TicketPtr &ticket = tickets_[copy.action], &coming = coming_[copy.value];
  ticket = coming = memory.in(there.parcel, std::move(blocks), std::move(after));
  moved_.in += Bytes(bytes);
  return taken;
}

void Copies::wait_for(Ticket& ticket) {
  const Nanos before = wall_clock();
  ticket.wait();
  moved_.waited += wall_clock() - before;
}

bool Copies::wait(ValueIndex value, int32_t memory) {
  if (memory != 0) {
    HostCopy& there = host_copies_.at({value, memory});
    wait_for(*there.out);
    there.held.clear();
    return true;
  }
  const auto found = coming_.find(value);
  if (found == coming_.end()) return false;
  wait_for(*found->second);
  coming_.erase(found);
  return true;
}

bool Copies::has(ValueIndex value) const {
  const auto there = host_copies_.lower_bound({value, 0});
  return there != host_copies_.end() && there->first.first == value;
}

void Copies::free(ValueIndex value, int32_t memory) { host_copies_.erase({value, memory}); }

void Copies::end() noexcept {
  for (const auto& [action, ticket] : tickets_) {
    if (ticket) ticket->cancel();
  }
  tickets_.clear();
  coming_.clear();
  host_copies_.clear();
}

}  // namespace reprise::runtime::internal::transfer
