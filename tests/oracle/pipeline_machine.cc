#include "oracle/pipeline_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

namespace reprise::testing {
namespace {

// A Work is one thing that a device does, with the values by name.
struct Work {
  size_t action = 0;
  int64_t time = 0, workspace = 0;
  int64_t counts = 0;  // the bytes of a consumed output in the workspace
  std::vector<std::string> reads, consumes;
  std::vector<std::pair<std::string, int64_t>> writes;
};

using MessageName = std::tuple<int, int, int>;  // the part that sends, micro-batch, kind

class Bookkeeper {
 public:
  Bookkeeper(const Pipeline& pipeline, const PipelinePlan& plan, int device)
      : pipeline_(pipeline), plan_(plan), device_(device), chain_(pipeline.chain) {}

  // Lists the work of the device, and says what the device needs at most.
  int64_t peak() {
    list();
    return walk();
  }
  std::vector<int64_t> durations() const { return durations_; }

 private:
  std::string x(int m, size_t k) const { return fmt::format("{}x{}", m, k); }
  std::string g(int m, size_t k) const { return fmt::format("{}g{}", m, k); }
  std::string s(int m, size_t i, const std::string& o) const {
    return fmt::format("{}s{}{}", m, i, o);
  }
  int64_t x_bytes(size_t k) const { return boundary_bytes(chain_, k).count(); }
  int64_t g_bytes(size_t k) const { return boundary_gradient_bytes(chain_, k).count(); }

  const StageOption* option(size_t i, const std::string& name) const {
    for (const StageOption& o : chain_.stages[i].options) {
      if (o.name == name) return &o;
    }
    return nullptr;
  }

  static size_t number(const std::string& op) {
    size_t i = 0;
    std::from_chars(op.data() + 1, op.data() + op.size(), i);
    return i;
  }

  void forward(int m, size_t i, const std::string& variant, Work& work) {
    const Stage& stage = chain_.stages[i];
    work.reads = {x(m, i)};
    work.writes = {{x(m, i + 1), x_bytes(i + 1)}};
    const StageOption* o = option(i, variant);
    const Cost cost = o != nullptr ? o->forward : stage.forward;
    work.time = cost.time.count();
    work.workspace = cost.workspace.count();
    if (o == nullptr) return;
    work.writes.push_back({s(m, i, variant), o->saved.count()});
    if (o->consumes_input && !o->reads_input) work.consumes = {x(m, i)};
  }

  // `later`: what the backward of the part runs after this.
  void backward(int m, size_t i, const std::string& variant, bool split,
                const std::vector<std::string>& later, Work& work) {
    const StageOption& o = *option(i, variant);
    work.reads = {g(m, i + 1), s(m, i, variant)};
    if (o.reads_output) work.reads.push_back(x(m, i + 1));
    if (o.consumes) work.consumes = work.reads;
    if (o.reads_input) {
      work.reads.push_back(x(m, i));
      if (o.consumes_input) work.consumes.push_back(x(m, i));
    }
    work.time = o.backward.time.count();
    work.workspace = o.backward.workspace.count();
    if (!pipeline_.stages.empty()) work.counts = pipeline_.stages[i].output_in_workspace.count();
    work.writes = {{g(m, i), g_bytes(i)}};
    const WeightPart* weights = split_of(i, variant);
    if (split && weights != nullptr) {
      work.time -= weights->cost.time.count();
      int64_t kept = weights->kept.count();
      if (weights->rest) {
        work.time = weights->rest->time.count();
        work.workspace = weights->rest->workspace.count();
      }
      if (weights->reads_input && o.reads_input) {
        std::erase(work.consumes, x(m, i));
        work.reads.push_back(x(m, i));
        if (made_again(i, later)) {
          work.consumes.push_back(x(m, i));
          kept += x_bytes(i);
        }
      }
      work.writes.push_back({fmt::format("{}k{}", m, i), kept});
    } else {
      work.writes.push_back({fmt::format("w{}", i), chain_.stages[i].weight_gradient.count()});
    }
  }

  const WeightPart* split_of(size_t i, const std::string& variant) const {
    const auto& part = pipeline_.stages.empty() ? std::nullopt : pipeline_.stages[i].weight_part;
    if (!part) return nullptr;
    const auto& names = part->options;
    const bool split = names.empty() || std::ranges::find(names, variant) != names.end();
    return split ? &*pipeline_.stages[i].weight_part : nullptr;
  }

  // Returns whether these runs make the input of stage i once more.
  static bool made_again(size_t i, const std::vector<std::string>& later) {
    return i > 0 && std::ranges::find(later, fmt::format("F{}", i - 1)) != later.end();
  }

  static std::vector<std::string> after(const std::vector<PartRun>& runs, const PartRun& run) {
    std::vector<std::string> later;
    for (const PartRun* next = &run + 1; next != runs.data() + runs.size(); ++next) {
      later.push_back(next->op);
    }
    return later;
  }

  void list() {
    const auto& order = plan_.devices[static_cast<size_t>(device_)].order;
    for (size_t a = 0; a < order.size(); ++a) {
      const PipelineAction& action = order[a];
      const PipelinePart& part = plan_.parts[static_cast<size_t>(action.part)];
      const int m = action.micro_batch;
      const auto first = static_cast<size_t>(part.first_stage);
      const size_t end = first + static_cast<size_t>(part.stages);
      int64_t total = 0;
      const auto add = [&](Work work) {
        work.action = a;
        total += work.time;
        works_.push_back(std::move(work));
      };
      const auto runs = [&](const std::vector<PartRun>& list_of_runs, bool split) {
        for (const PartRun& run : list_of_runs) {
          Work work;
          if (run.op == "loss") {
            work.reads = {x(m, end)};
            work.writes = {{g(m, end), g_bytes(end)}};
            work.time = chain_.loss.cost.time.count();
            work.workspace = chain_.loss.cost.workspace.count();
            if (chain_.loss.consumes) work.consumes = work.reads;
          } else if (run.op[0] == 'F') {
            forward(m, number(run.op), run.variant, work);
          } else {
            backward(m, number(run.op), run.variant, split, after(list_of_runs, run), work);
          }
          add(work);
        }
      };
      const PartPlan& how = part.plans[static_cast<size_t>(part.plan_of[static_cast<size_t>(m)])];
      const bool activation = action.message == MessageKind::kActivation;
      switch (action.kind) {
        case PipelineActionKind::kForward:
          runs(how.forward, false);
          break;
        case PipelineActionKind::kBackward:
          runs(how.backward, false);
          break;
        case PipelineActionKind::kInputGradient:
          runs(how.backward, true);
          break;
        case PipelineActionKind::kWeightGradient:
          for (const PartRun& run : how.backward) {
            if (run.op[0] != 'B') continue;
            const size_t i = number(run.op);
            const WeightPart* weights = split_of(i, run.variant);
            if (weights == nullptr) continue;
            Work work;
            work.reads = {fmt::format("{}k{}", m, i)};
            if (weights->consumes) work.consumes = work.reads;
            if (weights->reads_input && option(i, run.variant)->reads_input &&
                !made_again(i, after(how.backward, run))) {
              work.reads.push_back(x(m, i));
            }
            work.writes = {{fmt::format("w{}", i), chain_.stages[i].weight_gradient.count()}};
            work.time = weights->cost.time.count();
            work.workspace = weights->cost.workspace.count();
            add(work);
          }
          break;
        case PipelineActionKind::kReceive: {
          Work work;
          work.writes = {activation ? std::pair(x(m, first), x_bytes(first))
                                    : std::pair(g(m, end), g_bytes(end))};
          add(work);
          break;
        }
        case PipelineActionKind::kSend:
        case PipelineActionKind::kWait: {
          Work work;
          work.reads = {activation ? x(m, end) : g(m, first)};
          add(work);
          break;
        }
      }
      const auto& on = pipeline_.devices[static_cast<size_t>(device_)];
      durations_.push_back((total * on.time_percent + 99) / 100);
    }
  }

  // A value is given back after the last thing that touches it before it is made anew, and a weight
  // gradient and the gradient of the input stay to the end. The caller has the inputs.
  bool stays(const std::string& value) const { return value[0] == 'w' || value.ends_with("g0"); }
  bool callers(const std::string& value) const { return value.ends_with("x0"); }

  int64_t walk() {
    int64_t level = chain_.fixed.count();
    for (const PipelinePart& part : plan_.parts) {
      if (part.device != device_) continue;
      for (int i = part.first_stage; i < part.first_stage + part.stages; ++i) {
        level += stage_fixed(pipeline_, static_cast<size_t>(i)).count();
      }
      if (part.first_stage == 0) level += x_bytes(0) * pipeline_.micro_batches;
    }
    int64_t most = level;
    std::map<std::string, int64_t> held;
    for (size_t w = 0; w < works_.size(); ++w) {
      const Work& work = works_[w];
      int64_t workspace = work.workspace;
      for (const std::string& value : work.consumes) {
        if (callers(value)) continue;
        if (read_again(value, w)) {
          workspace -= std::min(workspace, work.counts);
          continue;
        }
        level -= held.at(value);
        held.erase(value);
      }
      int64_t twice = 0;  // A second gradient of the same weights is added to the first.
      for (const auto& [value, bytes] : work.writes) {
        if (held.contains(value)) {
          twice += bytes;
        } else {
          held[value] = bytes;
          level += bytes;
        }
      }
      most = std::max(most, level + twice + workspace);
      std::set<std::string> touched;
      for (const std::string& value : work.reads) touched.insert(value);
      for (const auto& [value, bytes] : work.writes) touched.insert(value);
      for (const std::string& value : touched) {
        if (!held.contains(value) || stays(value) || callers(value) || read_again(value, w))
          continue;
        level -= held[value];
        held.erase(value);
      }
    }
    return most;
  }

  bool read_again(const std::string& value, size_t after) const {
    for (size_t w = after + 1; w < works_.size(); ++w) {
      if (std::ranges::find(works_[w].reads, value) != works_[w].reads.end()) return true;
      for (const auto& [written, bytes] : works_[w].writes) {
        if (written == value) return false;
      }
    }
    return false;
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  int device_;
  const Chain& chain_;
  std::vector<Work> works_;
  std::vector<int64_t> durations_;
};

struct Message {
  std::optional<int64_t> sent, posted, begun, done;
};

// The clock stands still until nothing more can begin, and then goes to the next end of anything.
class Clock {
 public:
  Clock(const Pipeline& pipeline, const PipelinePlan& plan,
        const std::vector<std::vector<int64_t>>& durations)
      : pipeline_(pipeline), plan_(plan), durations_(durations) {
    next_.assign(plan.devices.size(), 0);
    free_at_.assign(plan.devices.size(), 0);
    queues_.resize(pipeline.links.size());
    link_free_.assign(pipeline.links.size(), 0);
  }

  MachineRun run() {
    result_.starts.resize(plan_.devices.size());
    while (true) {
      bool moved = true;
      while (moved) {
        moved = false;
        for (size_t d = 0; d < next_.size(); ++d) moved = device_step(d) || moved;
        for (size_t l = 0; l < queues_.size(); ++l) moved = link_step(l) || moved;
      }
      const auto later = next_moment();
      if (!later) break;
      now_ = *later;
    }
    for (size_t d = 0; d < next_.size(); ++d) {
      if (next_[d] < plan_.devices[d].order.size()) result_.stuck = true;
      result_.time = std::max(result_.time, free_at_[d]);
    }
    return result_;
  }

 private:
  bool here(const MessageName& name) const {
    const auto found = messages_.find(name);
    return found != messages_.end() && found->second.done && *found->second.done <= now_;
  }

  bool crosses(int part, int other) const {
    return other >= 0 && other < static_cast<int>(plan_.parts.size()) &&
           plan_.parts[static_cast<size_t>(part)].device !=
               plan_.parts[static_cast<size_t>(other)].device;
  }

  bool device_step(size_t d) {
    const auto& order = plan_.devices[d].order;
    if (next_[d] == order.size() || free_at_[d] > now_) return false;
    const PipelineAction& action = order[next_[d]];
    const int kind = action.message == MessageKind::kGradient ? 1 : 0;
    const MessageName own{action.part, action.micro_batch, kind};
    switch (action.kind) {
      case PipelineActionKind::kSend: {
        messages_[own].sent = now_;
        const int other = kind == 0 ? action.part + 1 : action.part - 1;
        const int link = find_link(pipeline_, static_cast<int>(d),
                                   plan_.parts[static_cast<size_t>(other)].device);
        queues_[static_cast<size_t>(link)].push_back(own);
        break;
      }
      case PipelineActionKind::kReceive:
        messages_[{kind == 0 ? action.part - 1 : action.part + 1, action.micro_batch, kind}]
            .posted = now_;
        break;
      case PipelineActionKind::kWait:
        if (!here(own)) return false;
        break;
      case PipelineActionKind::kForward:
        if (crosses(action.part, action.part - 1) &&
            !here({action.part - 1, action.micro_batch, 0})) {
          return false;
        }
        break;
      case PipelineActionKind::kBackward:
      case PipelineActionKind::kInputGradient:
        if (crosses(action.part, action.part + 1) &&
            !here({action.part + 1, action.micro_batch, 1})) {
          return false;
        }
        break;
      case PipelineActionKind::kWeightGradient:
        break;
    }
    result_.starts[d].push_back(now_);
    free_at_[d] = now_ + durations_[d][next_[d]];
    ++next_[d];
    return true;
  }

  bool link_step(size_t l) {
    if (link_free_[l] > now_) return false;
    for (const MessageName& name : queues_[l]) {
      Message& message = messages_[name];
      if (message.begun) continue;
      if (!message.posted) return false;
      message.begun = now_;
      const auto [part, m, kind] = name;
      const auto& sender = plan_.parts[static_cast<size_t>(part)];
      const auto boundary =
          static_cast<size_t>(kind == 0 ? sender.first_stage + sender.stages : sender.first_stage);
      const int64_t bytes = (kind == 0 ? boundary_bytes(pipeline_.chain, boundary)
                                       : boundary_gradient_bytes(pipeline_.chain, boundary))
                                .count();
      const Link& link = pipeline_.links[l];
      __extension__ using Wide = __int128;
      const Wide rate = link.bytes_per_second;
      message.done = now_ + link.latency.count() +
                     static_cast<int64_t>((Wide{bytes} * 1'000'000'000 + rate - 1) / rate);
      link_free_[l] = *message.done;
      return true;
    }
    return false;
  }

  std::optional<int64_t> next_moment() const {
    std::optional<int64_t> later;
    const auto offer = [&](int64_t at) {
      if (at > now_ && (!later || at < *later)) later = at;
    };
    for (const int64_t at : free_at_) offer(at);
    for (const auto& [name, message] : messages_) {
      if (message.done) offer(*message.done);
    }
    return later;
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  const std::vector<std::vector<int64_t>>& durations_;
  int64_t now_ = 0;
  std::vector<size_t> next_;
  std::vector<int64_t> free_at_;
  std::map<MessageName, Message> messages_;
  std::vector<std::vector<MessageName>> queues_;  // by link, in the order in which they were sent
  std::vector<int64_t> link_free_;
  MachineRun result_;
};

}  // namespace

MachineRun run_machine(const Pipeline& pipeline, const PipelinePlan& plan) {
  std::vector<std::vector<int64_t>> durations;
  std::vector<int64_t> peaks;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    Bookkeeper books(pipeline, plan, static_cast<int>(d));
    peaks.push_back(books.peak());
    durations.push_back(books.durations());
  }
  MachineRun run = Clock(pipeline, plan, durations).run();
  run.peaks = std::move(peaks);
  return run;
}

}  // namespace reprise::testing
