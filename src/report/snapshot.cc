// This file writes PyTorch's memory snapshot as torch.cuda.memory._snapshot() returns it, and as
// torch/cuda/_memory_viz.py and MemoryViz.js read it.
#include <fmt/format.h>

#include <algorithm>

#include "report/facts.h"
#include "report/markup.h"
#include "report/pickle.h"
#include "reprise/model/errors.h"
#include "reprise/pack/pack.h"
#include "reprise/pack/plan_blocks.h"

namespace reprise {

namespace {

using report::Facts;
using report::PickleWriter;

constexpr int64_t kBase = int64_t{1} << 40;   // the address at which the segment pretends to stand
constexpr int64_t kLimit = int64_t{1} << 52;  // bytes; the viewer counts in doubles
constexpr int64_t kAlignment = 64;

int64_t rounded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Piece {
  int64_t address = 0;
  int64_t bytes = 0;
  std::string name;            // in the place of a stack frame
  std::string category;        // the viewer's choice of a colour
  int64_t action = 0;          // action that made it
  int64_t begin = 0, end = 0;  // ticks of plan_blocks()
};

struct Event {
  int64_t tick = 0;
  bool allocates = false;
  size_t piece = 0;

  // Frees come first, because the next allocations may take their place.
  bool operator<(const Event& other) const {
    return tick != other.tick ? tick < other.tick : allocates < other.allocates;
  }
};

class Snapshot {
 public:
  explicit Snapshot(const Facts& facts) : facts_(facts) {
    const std::vector<Action>& actions = facts.input.plan.actions;
    blocks_ = plan_blocks(facts.graph, actions, facts.input.machine);
    owners_ = block_owners(facts.graph, actions, facts.input.machine);
    packing_ = pack(blocks_, {.steps = 5'000'000, .time_limit = Nanos(2'000'000'000)});
    end_ = 2 * static_cast<int64_t>(actions.size());
    collect();
  }

  std::string write() {
    pickle_.open_dict();
    pickle_.key("device_traces");
    pickle_.open_list();
    write_trace();
    pickle_.next();
    pickle_.close_list();
    pickle_.key("segments");
    pickle_.open_list();
    write_segment();
    pickle_.next();
    pickle_.close_list();
    pickle_.close_dict();
    return pickle_.take();
  }

 private:
  void collect() {
    const int64_t fixed = facts_.graph.fixed.count();
    if (fixed >= kLimit || packing_.height.count() >= kLimit) {
      throw InputError("a memory snapshot holds less than 2^52 bytes, and this plan needs more");
    }
    if (fixed > 0) {
      pieces_.push_back({kBase, fixed, "resident all through: parameters, optimizer state", "fixed",
                         0, 0, end_ + 1});
    }
    size_ = rounded(fixed) + std::max(rounded(packing_.height.count()), kAlignment);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].bytes == Bytes(0) || blocks_[b].begin == blocks_[b].end) continue;
      pieces_.push_back(piece(b, kBase + rounded(fixed)));
    }
  }

  Piece piece(size_t b, int64_t base) const {
    const BlockOwner& owner = owners_[b];
    const Block& block = blocks_[b];
    const std::string op = owner.op < 0 ? "" : facts_.names[owner.op];
    Piece result = {base + packing_.offsets[b].count(),
                    block.bytes.count(),
                    "",
                    "workspace",
                    block.begin / 2,
                    block.begin,
                    block.end};
    if (owner.value < 0) {
      result.name = "workspace of " + op;
      return result;
    }
    const Value& value = facts_.graph.values[owner.value];
    result.category = to_string(value.kind);
    const std::string id = report::shortened(value.id, 120);
    result.name = op.empty() ? id + ", an input" : id + ", written by " + op;
    // A result is live at the end of the step, so its block ends after the step.
    if (block.end == end_ && !owner.temporary) result.end = end_ + 1;
    return result;
  }

  void common(const char* action, int64_t address, int64_t bytes, int64_t tick) {
    const Timeline& timeline = facts_.plan.timeline;
    const auto at = static_cast<size_t>((tick + 1) / 2);  // two ticks an action
    const Nanos time = at < timeline.steps.size() ? timeline.steps[at].start : timeline.time;
    pickle_.open_dict();
    pickle_.field("action", action);
    pickle_.field("addr", address);
    pickle_.field("size", bytes);
    pickle_.field("stream", 0);
    pickle_.field("time_us", time.count() / 1000);
  }

  // The frames of a piece are written once, and later uses refer to them.
  void frames(size_t p) {
    pickle_.key("frames");
    if (frames_.size() <= p) frames_.resize(pieces_.size(), -1);
    if (frames_[p] >= 0) return pickle_.refer(static_cast<uint32_t>(frames_[p]));
    const Piece& piece = pieces_[p];
    pickle_.open_list();
    pickle_.open_dict();
    pickle_.field("name", piece.name);
    pickle_.field("filename", "plan action");
    pickle_.field("line", piece.action);
    pickle_.close_dict();
    pickle_.next();
    pickle_.close_list();
    frames_[p] = pickle_.remember();
  }

  void event(const char* action, size_t p, int64_t tick) {
    common(action, pieces_[p].address, pieces_[p].bytes, tick);
    pickle_.field("category", pieces_[p].category);
    frames(p);
    pickle_.close_dict();
    pickle_.next();
  }

  void write_trace() {
    std::vector<Event> events;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      events.push_back({pieces_[p].begin, true, p});
      if (pieces_[p].end <= end_) events.push_back({pieces_[p].end, false, p});
    }
    std::stable_sort(events.begin(), events.end());
    pickle_.open_list();
    plain_event("segment_alloc", kBase, size_, 0, "");
    for (const Event& e : events) {
      if (e.allocates) {
        event("alloc", e.piece, e.tick);
      } else {
        event("free_requested", e.piece, e.tick);
        event("free_completed", e.piece, e.tick);
      }
    }
    // If there are categories, the viewer wants the category "unknown" among them. The viewer draws
    // nothing for this event.
    plain_event("snapshot", 0, 0, end_, "unknown");
    pickle_.close_list();
  }

  void plain_event(const char* action, int64_t address, int64_t bytes, int64_t tick,
                   std::string_view category) {
    common(action, address, bytes, tick);
    if (!category.empty()) pickle_.field("category", category);
    pickle_.key("frames");
    pickle_.open_list();
    pickle_.close_list();
    pickle_.close_dict();
    pickle_.next();
  }

  void write_segment() {
    std::vector<size_t> live;
    int64_t allocated = 0;
    int64_t requested = 0;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      if (pieces_[p].end <= end_) continue;
      live.push_back(p);
      allocated += rounded(pieces_[p].bytes);
      requested += pieces_[p].bytes;
    }
    std::sort(live.begin(), live.end(),
              [&](size_t a, size_t b) { return pieces_[a].address < pieces_[b].address; });
    pickle_.open_dict();
    pickle_.field("device", 0);
    pickle_.field("address", kBase);
    pickle_.field("total_size", size_);
    pickle_.field("allocated_size", allocated);
    pickle_.field("active_size", allocated);
    pickle_.field("requested_size", requested);
    pickle_.field("stream", 0);
    pickle_.field("segment_type", "large");
    pickle_.key("frames");
    pickle_.open_list();
    pickle_.close_list();
    pickle_.key("blocks");
    pickle_.open_list();
    int64_t at = kBase;
    for (const size_t p : live) {
      gap(at, pieces_[p].address);
      block(pieces_[p].address, rounded(pieces_[p].bytes), pieces_[p].bytes, "active_allocated", p);
      at = pieces_[p].address + rounded(pieces_[p].bytes);
    }
    gap(at, kBase + size_);
    pickle_.close_list();
    pickle_.close_dict();
  }

  void gap(int64_t from, int64_t to) {
    if (to > from) block(from, to - from, 0, "inactive", pieces_.size());
  }

  void block(int64_t address, int64_t size, int64_t requested, const char* state, size_t p) {
    pickle_.open_dict();
    pickle_.field("address", address);
    pickle_.field("size", size);
    pickle_.field("requested_size", requested);
    pickle_.field("state", state);
    if (p < pieces_.size()) {
      frames(p);
    } else {
      pickle_.key("frames");
      pickle_.open_list();
      pickle_.close_list();
    }
    pickle_.close_dict();
    pickle_.next();
  }

  const Facts& facts_;
  std::vector<Block> blocks_;
  std::vector<BlockOwner> owners_;
  Packing packing_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> frames_;  // by piece, if remembered; -1: not written yet
  int64_t end_ = 0;              // ticks
  int64_t size_ = 0;             // bytes of the segment
  PickleWriter pickle_;
};

}  // namespace

std::string memory_snapshot(const ReportInput& input) {
  const Facts facts(input);
  return Snapshot(facts).write();
}

}  // namespace reprise
