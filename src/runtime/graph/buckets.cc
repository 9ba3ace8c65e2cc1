#include "runtime/graph/buckets.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/distributed/bucket_layout.h"
#include "runtime/graph/shards.h"
#include "runtime/graph/words.h"
#include "runtime/step/parameter_names.h"

namespace reprise::runtime::internal::graph {

using distributed::bucket_layout;
using distributed::BucketPiece;
using step::parameter_names;
using step::StepValue;

namespace {

// The limits of DistributedDataParallel: the first bucket is small, so that its sum starts early.
constexpr int64_t kFirstLimit = 1 << 20, kLimit = 25 << 20;

constexpr const char* kAccumulates = "torch::autograd::AccumulateGrad";

// A Moment says when something happened: before which call, and in which order there.
using Moment = std::pair<size_t, size_t>;

int64_t elements_of(const Geometry& geometry) {
  return std::accumulate(geometry.sizes.begin(), geometry.sizes.end(), int64_t{1},
                         std::multiplies<>());
}

// Returns the strides of the gradient if they cover its elements without gaps, else those of rows.
std::vector<int64_t> strides_in_bucket(const Geometry& geometry) {
  std::vector<size_t> order(geometry.sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return geometry.strides[a] < geometry.strides[b]; });
  int64_t expected = 1;
  bool dense = true;
  for (const size_t d : order) {
    if (geometry.sizes[d] == 1) continue;
    dense = dense && geometry.strides[d] == expected;
    expected *= geometry.sizes[d];
  }
  if (dense) return geometry.strides;
  std::vector<int64_t> rows(geometry.sizes.size(), 1);
  for (size_t d = rows.size(); d-- > 1;)
    rows[d - 1] = rows[d] * std::max<int64_t>(1, geometry.sizes[d]);
  return rows;
}

// Returns for each value when autograd has accumulated it into a gradient for the last time. It does
// so by calls that a replay needs, and by others.
std::map<int32_t, Moment> accumulations(const Recording& recording) {
  std::map<int32_t, Moment> moments;
  const auto note = [&](const Call& call, Moment moment) {
    if (call.node != kAccumulates) return;
    const auto mark = [&](const TensorRef& ref) {
      if (ref.memory != Memory::kValue) return;
      Moment& last = moments[ref.index];
      last = std::max(last, moment);
    };
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) mark(ref);
    }
    for (const auto& output : call.outputs) {
      for (const TensorRef& ref : output) mark(ref);
    }
  };
  for (size_t k = 0; k < recording.left_out.size(); ++k) {
    note(recording.left_out[k].call, {recording.left_out[k].before, k});
  }
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    note(recording.calls[c], {c, recording.left_out.size()});
    // A call in place makes the version that the gradient ends as.
    for (size_t v = 0; recording.calls[c].node == kAccumulates && v < recording.values.size();
         ++v) {
      if (recording.values[v].maker != static_cast<int32_t>(c)) continue;
      moments[static_cast<int32_t>(v)] = {c, recording.left_out.size()};
    }
  }
  return moments;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw InputError("the step cannot be captured for a process group: " + reason);
}

// Returns the leaves whose gradients are averaged.
std::vector<size_t> averaged_leaves(const Recording& recording) {
  std::vector<size_t> leaves;
  for (size_t l = 0; l < recording.gradients.size(); ++l) {
    const LeafGradient& leaf = recording.gradients[l];
    if (leaf.input >= 0 || leaf.gradient.memory == Memory::kNone) continue;
    if (leaf.gradient.memory == Memory::kExternal) {
      refuse("a gradient is memory from outside the step: give the step a copy of it");
    }
    leaves.push_back(l);
  }
  return leaves;
}

// Returns the first call behind the backward that uses a gradient of these leaves, or -1. If the step
// returns a gradient, that counts as a call behind all others.
int32_t first_reader(const Recording& recording, const std::vector<size_t>& leaves) {
  std::vector<bool> of_gradient(recording.values.size(), false);
  for (const size_t l : leaves) {
    int32_t v = recording.gradients[l].gradient.index;
    for (; v >= 0; v = recording.values[v].previous) of_gradient[v] = true;
  }
  bool behind = false;
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const Call& call = recording.calls[c];
    behind = behind || call.phase == Phase::kBackward;
    if (!behind || call.phase == Phase::kBackward) continue;
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory != Memory::kValue || argument.shape_only) continue;
        if (of_gradient[ref.index]) return static_cast<int32_t>(c);
      }
    }
  }
  const bool returns = std::any_of(
      recording.outputs.begin(), recording.outputs.end(),
      [&](const TensorRef& ref) { return ref.memory == Memory::kValue && of_gradient[ref.index]; });
  return returns ? static_cast<int32_t>(recording.calls.size()) : -1;
}

std::string reader_text(const Recording& recording, int32_t reader) {
  if (reader == static_cast<int32_t>(recording.calls.size())) return "what it returns";
  const Call& call = recording.calls[reader];
  return call.name() + (call.place.empty() ? "" : " at " + call.place);
}

// Returns the gradient of a leaf as it is before call `reader`, or as it ends without a reader.
int32_t value_before(const Recording& recording, size_t leaf, int32_t reader) {
  const int32_t last = recording.gradients[leaf].gradient.index;
  if (reader < 0) return last;
  int32_t value = last;
  while (value >= 0 && recording.values[value].maker >= reader) {
    const Call& maker = recording.calls[recording.values[value].maker];
    if (maker.phase == Phase::kBackward) value = -1;  // It goes on behind the reader.
    if (value >= 0) value = recording.values[value].previous;
  }
  if (value >= 0) return value;
  refuse(
      reader_text(recording, reader) +
      " uses gradients, and another gradient is made behind it, in a backward or in new memory. "
      "Let all gradients be complete before they are used, and change them in place, as clipping "
      "does");
}

// Puts the leaves into the order in which their gradients, which are these values, are ready.
std::vector<size_t> in_order(const Recording& recording, const std::vector<size_t>& leaves,
                             const std::vector<int32_t>& value_of_leaf) {
  const std::map<int32_t, Moment> moments = accumulations(recording);
  std::vector<std::pair<Moment, size_t>> ready;
  for (const size_t l : leaves) {
    const int32_t value = value_of_leaf[l];
    const auto moment = moments.find(value);
    const int32_t maker = recording.values[value].maker;
    ready.emplace_back(
        moment != moments.end() ? moment->second : Moment(static_cast<size_t>(maker) + 1, 0), l);
  }
  std::stable_sort(ready.begin(), ready.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<size_t> ordered;
  for (const auto& [moment, leaf] : ready) ordered.push_back(leaf);
  return ordered;
}

Argument of(TensorRef ref) { return {.kind = ArgumentKind::kTensor, .tensors = {std::move(ref)}}; }

// Adds the values and works of one bucket. `value` is the version of its memory that is current.
class AddBucket {
 public:
  AddBucket(RewrittenStep& step, Buckets& buckets, size_t number,
            const std::shared_ptr<Averager>& averager, const std::shared_ptr<Updater>& updater)
      : step_(step),
        buckets_(buckets),
        bucket_(buckets.all[number]),
        number_(number),
        averager_(averager),
        updater_(updater) {}

  void run() {
    for (Filling& filling : bucket_.fillings) fill(filling);
    const std::string what = fmt::format("the sum of bucket {} of {} ({} bytes of gradients)",
                                         number_ + 1, buckets_.all.size(), bytes());
    bucket_.start =
        add({.name = fmt::format("allreduce.start.{}", number_),
             .kernel =
                 [averager = averager_, number = number_, what](std::vector<c10::IValue>& stack) {
                   averager->start(number, stack[0].toTensor(), what);
                   stack.clear();
                 },
             .arguments = {of(whole())},
             .apart = true});
    bucket_.wait =
        add({.name = fmt::format("allreduce.wait.{}", number_),
             .kernel =
                 [averager = averager_, number = number_](std::vector<c10::IValue>& stack) {
                   stack.clear();
                   averager->wait(number);
                 },
             .arguments = {of(whole())},
             .apart = true});
    for (Filling& filling : bucket_.fillings) {
      if (buckets_.reader >= 0) {
        copy_back(filling);
        continue;
      }
      TensorRef& average = buckets_.averages[filling.leaf];
      average = {.memory = Memory::kValue, .index = value_, .geometry = filling.geometry};
    }
    if (buckets_.sharded) add_shards();
  }

 private:
  int64_t bytes() const {
    return bucket_.elements * static_cast<int64_t>(c10::elementSize(bucket_.dtype));
  }
  TensorRef whole() const {
    return {.memory = Memory::kValue,
            .index = value_,
            .geometry = {.sizes = {bucket_.elements}, .strides = {1}, .dtype = bucket_.dtype}};
  }
  Geometry geometry(const Filling& filling) const {
    const Geometry& own = step_.recording.gradients[filling.leaf].gradient.geometry;
    return {.sizes = own.sizes,
            .strides = strides_in_bucket(own),
            .offset = filling.offset,
            .dtype = own.dtype};
  }

  // Adds the works that take the averages to updated parameters. They run in steps only.
  void add_shards() {
    const auto sharder = std::make_shared<const Sharder>(number_, bucket_, averager_, updater_);
    const auto add_part = [&](const char* name, void (Sharder::*part)(const at::Tensor&) const) {
      return add({.name = fmt::format("{}.{}", name, number_),
                  .kernel =
                      [sharder, part](std::vector<c10::IValue>& stack) {
                        const at::Tensor memory = stack[0].toTensor();
                        stack.clear();
                        (*sharder.*part)(memory);
                      },
                  .arguments = {of(whole())},
                  .apart = true});
    };
    bucket_.update = add_part("update.shard", &Sharder::update);
    bucket_.gather = add_part("allgather.start", &Sharder::start);
    bucket_.gathered = add_part("allgather.wait", &Sharder::finish);
  }

  // Adds a work that makes the next version of the bucket, and returns its position.
  int32_t add(Work work) {
    const auto next = static_cast<int32_t>(step_.recording.values.size());
    step_.recording.values.push_back({.bytes = bytes(), .device = step_.recording.device});
    if (value_ < 0) {
      work.made = {{0, 0, next}};
    } else {
      work.overwrites = {{next, value_}};
    }
    value_ = next;
    step_.works.all.push_back(std::move(work));
    return static_cast<int32_t>(step_.works.all.size()) - 1;
  }

  // Returns the gradient as the backward leaves it.
  TensorRef as_filled(const Filling& filling) const {
    TensorRef ref = step_.recording.gradients[filling.leaf].gradient;
    ref.index = filling.value;
    return ref;
  }

  // Adds the work that copies the average into the gradient's own memory, as its next version.
  void copy_back(Filling& filling) {
    const auto next = static_cast<int32_t>(step_.recording.values.size());
    const StepValue value = step_.recording.values[filling.value];
    step_.recording.values.push_back({.bytes = value.bytes, .device = value.device});
    const auto kernel = [place = filling.geometry](std::vector<c10::IValue>& stack) {
      const at::Tensor gradient = stack[0].toTensor(), memory = stack[1].toTensor();
      gradient.copy_(step::tensor_on(memory.storage(), place));
      stack.clear();
    };
    filling.back = static_cast<int32_t>(step_.works.all.size());
    step_.works.all.push_back({.name = "average",
                               .kernel = kernel,
                               .arguments = {of(as_filled(filling)), of(whole())},
                               .overwrites = {{next, filling.value}}});
    buckets_.average_of[filling.value] = next;
  }

  void fill(Filling& filling) {
    const LeafGradient& leaf = step_.recording.gradients[filling.leaf];
    filling.geometry = geometry(filling);
    std::vector<Argument> arguments{of(as_filled(filling))};
    if (value_ >= 0) arguments.push_back(of(whole()));
    const auto kernel = [averager = averager_, leaf, place = filling.geometry,
                         elements = bucket_.elements](std::vector<c10::IValue>& stack) {
      const at::Tensor gradient = stack[0].toTensor();
      const at::Tensor memory = stack.size() > 1
                                    ? stack[1].toTensor()
                                    : at::empty({elements}, gradient.options().dtype(place.dtype));
      averager->fill(step::tensor_on(memory.storage(), place), gradient, leaf);
      stack.clear();
      stack.emplace_back(memory);
    };
    filling.work = add({.name = "fill", .kernel = kernel, .arguments = std::move(arguments)});
  }

  RewrittenStep& step_;
  Buckets& buckets_;
  Bucket& bucket_;
  size_t number_;
  const std::shared_ptr<Averager>& averager_;
  const std::shared_ptr<Updater>& updater_;
  int32_t value_ = -1;
};

// Returns the works of call `first` and of those behind it, in whatever way they run. -1 has none.
std::vector<int32_t> works_from(const RewrittenStep& step, int32_t first) {
  std::vector<int32_t> works;
  if (first < 0) return works;
  for (auto c = static_cast<size_t>(first); c < step.recording.calls.size(); ++c) {
    works.push_back(static_cast<int32_t>(c));
    if (step.works.rerun[c] >= 0) works.push_back(step.works.rerun[c]);
  }
  for (const rewrite::CallVariant& variant : step.alternatives.variants) {
    if (variant.call >= first) works.push_back(variant.work);
  }
  for (const rewrite::CallRealization& realization : step.alternatives.realizations) {
    for (const rewrite::CallRealization::Piece& piece : realization.pieces) {
      if (std::max(piece.of, piece.after) < first) continue;
      works.insert(works.end(), piece.works.begin(), piece.works.end());
    }
  }
  return works;
}

// Lets these works use the average of each gradient in its place.
void read_averages(Works& all, const std::vector<int32_t>& works, const Buckets& buckets) {
  for (const int32_t w : works) {
    Work& work = all.all[w];
    for (Argument& argument : work.arguments) {
      for (TensorRef& ref : argument.tensors) ref = buckets.averaged(std::move(ref));
    }
    for (auto& [now, before] : work.overwrites) {
      const auto found = buckets.average_of.find(before);
      if (found != buckets.average_of.end()) before = found->second;
    }
  }
}

// Lets all ranks take the same way behind each number that the step reads on the host.
void agree_on_reads(RewrittenStep& step, const std::shared_ptr<Averager>& averager) {
  for (size_t c = 0; c < step.recording.calls.size(); ++c) {
    if (!is_host_read(step.recording.calls[c])) continue;
    Work& work = step.works.all[c];
    work.kernel = [averager, kernel = std::move(work.kernel),
                   read = step::host_read(step.recording.calls[c]),
                   device = step.recording.device](std::vector<c10::IValue>& stack) {
      averager->agree_on_read(read, device, [&] { kernel(stack); });
    };
  }
}

}  // namespace

Buckets find_buckets(const Recording& recording, const Updates& updates,
                     const CaptureOptions& options, int ranks) {
  Buckets buckets;
  if (options.group.empty()) return buckets;
  std::vector<size_t> leaves = averaged_leaves(recording);
  if (leaves.empty()) refuse("no parameter gets a gradient in it, so there is nothing to average");
  buckets.reader = first_reader(recording, leaves);
  if (buckets.reader >= 0 && options.shard_optimizer) {
    refuse(reader_text(recording, buckets.reader) +
           " uses gradients behind the backward, and with shard_optimizer the averages are not "
           "gradients any more. Leave shard_optimizer off");
  }
  std::vector<int32_t> value_of_leaf(recording.gradients.size(), -1);
  for (const size_t l : leaves) value_of_leaf[l] = value_before(recording, l, buckets.reader);
  leaves = in_order(recording, leaves, value_of_leaf);
  std::vector<BucketPiece> pieces;
  std::vector<at::Tensor> parameters;
  for (const size_t l : leaves) {
    parameters.push_back(recording.gradients[l].target);
    const Geometry& gradient = recording.gradients[l].gradient.geometry;
    pieces.push_back(
        {elements_of(gradient) * static_cast<int64_t>(c10::elementSize(gradient.dtype)),
         gradient.dtype, recording.device});
  }
  const std::vector<std::string> names = parameter_names(parameters, options);
  const int64_t cap = options.bucket_cap.count();
  const std::vector<int64_t> limits =
      cap > 0 ? std::vector<int64_t>{cap} : std::vector<int64_t>{kFirstLimit, kLimit};
  buckets.of_leaf.assign(recording.gradients.size(), -1);
  for (const std::vector<size_t>& members : bucket_layout(pieces, limits)) {
    Bucket& bucket = buckets.all.emplace_back();
    bucket.dtype = pieces[members[0]].dtype;
    for (const size_t p : members) {
      buckets.of_leaf[leaves[p]] = static_cast<int32_t>(buckets.all.size()) - 1;
      const int64_t elements = elements_of(recording.gradients[leaves[p]].gradient.geometry);
      bucket.fillings.push_back({.leaf = leaves[p],
                                 .offset = bucket.elements,
                                 .elements = elements,
                                 .value = value_of_leaf[leaves[p]],
                                 .name = names[p]});
      bucket.elements += elements;
    }
  }
  if (options.shard_optimizer) divide(buckets, recording, updates, ranks);
  return buckets;
}

void add_buckets(RewrittenStep& step, Buckets buckets, const std::shared_ptr<Averager>& averager,
                 const std::shared_ptr<Updater>& updater) {
  if (buckets.all.empty()) return;
  const std::vector<int32_t> readers = works_from(step, buckets.reader);
  if (buckets.reader < 0) buckets.averages.resize(step.recording.gradients.size());
  for (size_t b = 0; b < buckets.all.size(); ++b) {
    AddBucket(step, buckets, b, averager, updater).run();
  }
  read_averages(step.works, readers, buckets);
  agree_on_reads(step, averager);
  std::vector<Argument> averages;
  for (const Update& update : step.updates.each) {
    averages.push_back(of(buckets.gradient(step.recording, update.leaf)));
    step.works.all[update.work].arguments = {averages.back()};
  }
  if (!averages.empty()) {
    step.works.all[step.updates.whole].arguments = std::move(averages);
  }
  step.buckets = std::move(buckets);
}

}  // namespace reprise::runtime::internal::graph
