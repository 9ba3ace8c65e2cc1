#include "runtime/graph/shared_parts.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>

#include "runtime/rewrite/alternative.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::graph {

using distributed::Ranks;
using rewrite::covers_storage;
using rewrite::Sharers;
using step::Argument;
using step::ArgumentKind;
using step::Call;
using step::Geometry;
using step::Kernel;
using step::Memory;
using step::Recording;
using step::tensor_on;
using step::TensorRef;
using step::Work;

namespace {

using Stack = std::vector<c10::IValue>;

// Collects the ways of one call, and leaves out those whose dimensions the ranks do not divide.
class Ways {
 public:
  Ways(const Call& call, const Recording& recording, int64_t ranks)
      : call_(call), recording_(recording), ranks_(ranks), name_(call.op.operator_name().name) {}

  std::vector<SharedWay> find() {
    if (name_ == "aten::mm") {
      add("rows", {{0, 0}}, {{0, 0}});
      add("columns", {{1, 1}}, {{0, 1}});
    } else if (name_ == "aten::addmm") {
      add_addmm();
    } else if (name_ == "aten::bmm") {
      add("batch", {{0, 0}, {1, 0}}, {{0, 0}});
    } else if (name_ == "aten::baddbmm" && size(0, 0) == size(1, 0)) {
      add("batch", {{0, 0}, {1, 0}, {2, 0}}, {{0, 0}});
    } else if (name_ == "aten::convolution") {
      add_convolution();
    } else if (name_ == "aten::convolution_backward") {
      add_convolution_backward();
    } else if (name_ == "aten::_scaled_dot_product_flash_attention_for_cpu") {
      add_attention(3, {0, 1});
    } else if (name_ == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
      add_attention(6, {0, 1, 2});
    }
    return std::move(ways_);
  }

 private:
  // Returns the tensor of an argument; null if it is no defined tensor.
  const Geometry* tensor(size_t argument) const {
    if (argument >= call_.arguments.size()) return nullptr;
    const Argument& one = call_.arguments[argument];
    if (one.kind != ArgumentKind::kTensor || one.tensors.size() != 1) return nullptr;
    return one.tensors[0].memory == Memory::kNone ? nullptr : &one.tensors[0].geometry;
  }
  int64_t size(size_t argument, int64_t dimension) const {
    const Geometry* const geometry = tensor(argument);
    if (geometry == nullptr || static_cast<size_t>(dimension) >= geometry->sizes.size()) return 0;
    return geometry->sizes[dimension];
  }
  bool divides(int64_t size) const { return size >= ranks_ && size % ranks_ == 0; }

  bool has_result(const Slice& slice) const {
    if (slice.index >= call_.outputs.size() || call_.outputs[slice.index].size() != 1) return false;
    const TensorRef& ref = call_.outputs[slice.index][0];
    const auto dimension = static_cast<size_t>(slice.dimension);
    return ref.memory == Memory::kValue && covers_storage(ref, recording_) &&
           dimension < ref.geometry.sizes.size() && divides(ref.geometry.sizes[dimension]);
  }
  bool is_possible(const PartialRun& run) const {
    return std::all_of(
               run.arguments.begin(), run.arguments.end(),
               [&](const Slice& slice) { return divides(size(slice.index, slice.dimension)); }) &&
           std::all_of(run.results.begin(), run.results.end(),
                       [&](const Slice& slice) { return has_result(slice); });
  }
  void add(const char* name, std::vector<Slice> arguments, std::vector<Slice> results) {
    PartialRun run{std::move(arguments), std::move(results)};
    if (is_possible(run)) ways_.push_back({name, {std::move(run)}});
  }

  void add_addmm() {
    const Geometry* const bias = tensor(0);
    if (bias == nullptr) return;
    const auto dimensions = static_cast<int64_t>(bias->sizes.size());
    std::vector<Slice> rows{{1, 0}}, columns{{2, 1}};
    if (dimensions == 2 && bias->sizes[0] > 1) rows.push_back({0, 0});
    if (dimensions > 0 && bias->sizes.back() > 1) columns.push_back({0, dimensions - 1});
    add("rows", std::move(rows), {{0, 0}});
    add("columns", std::move(columns), {{0, 1}});
  }

  bool is_plain_convolution() const {
    const Argument* const transposed = rewrite::argument_of(call_, "transposed");
    const Argument* const groups = rewrite::argument_of(call_, "groups");
    return transposed != nullptr && groups != nullptr && transposed->constant.isBool() &&
           !transposed->constant.toBool() && groups->constant.isInt() &&
           groups->constant.toInt() == 1;
  }

  void add_convolution() {
    add("batch", {{0, 0}}, {{0, 0}});
    if (!is_plain_convolution()) return;
    std::vector<Slice> channels{{1, 0}};
    if (tensor(2) != nullptr) channels.push_back({2, 0});
    add("channels", std::move(channels), {{0, 1}});
  }

  // The gradient of the input is shared out by samples, and those of weight and bias, which all
  // samples add to, by the channels of the result.
  void add_convolution_backward() {
    const Argument* const asked = rewrite::argument_of(call_, "output_mask");
    if (asked == nullptr || !asked->constant.isBoolList() || !is_plain_convolution()) return;
    const size_t mask = static_cast<size_t>(asked - call_.arguments.data());
    const auto wanted = asked->constant.toBoolList();
    SharedWay way{.name = "parts", .runs = {}};
    const auto masked = [&](bool input, bool weight, bool bias) {
      return std::vector<std::pair<size_t, c10::IValue>>{
          {mask, c10::IValue(c10::List<bool>({input, weight, bias}))}};
    };
    if (wanted.get(0)) {
      way.runs.push_back({{{0, 0}, {1, 0}}, {{0, 0}}, masked(true, false, false)});
    }
    if (wanted.get(1)) {
      PartialRun weight{{{0, 1}, {2, 0}}, {{1, 0}}, masked(false, true, wanted.get(2))};
      if (wanted.get(2)) {
        weight.results.push_back({2, 0});
        const Argument* const sizes = rewrite::argument_of(call_, "bias_sizes");
        if (sizes == nullptr || !sizes->constant.isIntList()) return;
        weight.constants.emplace_back(static_cast<size_t>(sizes - call_.arguments.data()),
                                      c10::IValue(c10::List<int64_t>({size(2, 0) / ranks_})));
      }
      way.runs.push_back(std::move(weight));
    } else if (wanted.get(2)) {
      return;
    }
    const bool possible =
        !way.runs.empty() && std::all_of(way.runs.begin(), way.runs.end(),
                                         [&](const PartialRun& run) { return is_possible(run); });
    if (possible) ways_.push_back(std::move(way));
  }

  // The first operands, and all results, have samples and heads as their first two dimensions.
  void add_attention(size_t operands, const std::vector<size_t>& results) {
    const Argument* const dropout = rewrite::argument_of(call_, "dropout_p");
    if (dropout == nullptr || !dropout->constant.isDouble() || dropout->constant.toDouble() != 0) {
      return;
    }
    const Argument* const mask = rewrite::argument_of(call_, "attn_mask");
    const size_t at = mask == nullptr ? 0 : static_cast<size_t>(mask - call_.arguments.data());
    for (const int64_t dimension : {0, 1}) {
      std::vector<Slice> arguments, made;
      for (size_t k = 0; k < operands; ++k) arguments.push_back({k, dimension});
      for (const size_t k : results) made.push_back({k, dimension});
      if (at > 0 && tensor(at) != nullptr) {
        if (tensor(at)->sizes.size() == 4 && size(at, dimension) > 1) {
          arguments.push_back({at, dimension});
        }
      }
      add(dimension == 0 ? "batch" : "heads", std::move(arguments), std::move(made));
    }
  }

  const Call& call_;
  const Recording& recording_;
  const int64_t ranks_;
  const std::string& name_;
  std::vector<SharedWay> ways_;
};

// A Gatherer brings the parts of all ranks together.
class Gatherer {
 public:
  Gatherer(std::shared_ptr<const Sharers> ranks, std::string what)
      : ranks_(std::move(ranks)), what_(std::move(what)) {}

  int64_t rank() const { return ranks_->rank(); }
  int64_t ranks() const { return ranks_->size(); }
  at::Tensor part(const at::Tensor& whole, int64_t dimension, int64_t rank) const {
    const int64_t length = whole.size(dimension) / ranks();
    return whole.narrow(dimension, rank * length, length);
  }

  // Fills in the parts of the other ranks.
  void gather(const at::Tensor& whole, int64_t dimension) const {
    const int64_t each = whole.numel() / ranks();
    if (whole.stride(dimension) * whole.size(dimension) == whole.numel()) {
      ranks_->gather(tensor_on(whole.storage(), flat(whole)), what_);
      return;
    }
    const at::Tensor parts = at::empty({ranks(), each}, whole.options());
    std::vector<int64_t> sizes = whole.sizes().vec();
    sizes[dimension] /= ranks();
    const auto in_parts = [&](int64_t rank) { return parts[rank].view(sizes); };
    in_parts(rank()).copy_(part(whole, dimension, rank()));
    ranks_->gather(parts.view({-1}), what_);
    for (int64_t other = 0; other < ranks(); ++other) {
      if (other != rank()) part(whole, dimension, other).copy_(in_parts(other));
    }
  }

 private:
  static Geometry flat(const at::Tensor& tensor) {
    return {.sizes = {tensor.numel()}, .strides = {1}, .dtype = tensor.scalar_type()};
  }

  std::shared_ptr<const Sharers> ranks_;
  std::string what_;
};

// Returns the overload that writes the result of a product into memory that it is given, or nothing
// for other operators.
std::optional<c10::OperatorHandle> writing_product(const std::string& name) {
  const bool is_product =
      name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm" || name == "aten::baddbmm";
  if (!is_product) return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({name, "out"});
}

// A SharedKernel runs a call in parts, together with the other ranks.
struct SharedKernel {
  Kernel whole;
  std::optional<c10::OperatorHandle> writing;  // the same with the result as its last argument
  std::vector<PartialRun> runs;
  std::vector<Geometry> looks;  // of the whole results
  Gatherer gatherer;

  void operator()(Stack& stack) const {
    Stack results(looks.size(), c10::IValue(at::Tensor()));
    for (const PartialRun& run : runs) {
      run_part(run, stack, results);
      for (const Slice& slice : run.results) {
        gatherer.gather(results[slice.index].toTensor(), slice.dimension);
      }
    }
    stack = std::move(results);
  }

 private:
  at::Tensor own_part(const at::Tensor& whole_tensor, int64_t dimension) const {
    return gatherer.part(whole_tensor, dimension, gatherer.rank());
  }
  at::Tensor memory_for(const Slice& slice, const at::Tensor& like) const {
    const Geometry& look = looks[slice.index];
    return at::empty_strided(look.sizes, look.strides, like.options().requires_grad(false));
  }

  // Makes the results of a run, with this rank's part of them filled in.
  void run_part(const PartialRun& run, const Stack& stack, Stack& results) const {
    Stack part = stack;
    for (const Slice& slice : run.arguments) {
      part[slice.index] = own_part(part[slice.index].toTensor(), slice.dimension);
    }
    for (const auto& [argument, constant] : run.constants) part[argument] = constant;
    if (writing) {
      const Slice& slice = run.results[0];
      at::Tensor all = memory_for(slice, part[slice.index].toTensor());
      part.emplace_back(own_part(all, slice.dimension));
      writing->callBoxed(part);
      results[slice.index] = std::move(all);
      return;
    }
    whole(part);
    for (const Slice& slice : run.results) {
      const at::Tensor own = part[slice.index].toTensor();
      part[slice.index] = at::Tensor();
      at::Tensor all = memory_for(slice, own);
      own_part(all, slice.dimension).copy_(own);
      results[slice.index] = std::move(all);
    }
  }
};

// One exchange at a time is under way, and it has this number among those of its Ranks.
constexpr size_t kNumber = 0;

}  // namespace

template <class Exchange>
void SharingRanks::run(Exchange&& exchange) const {
  if (!measured_) return exchange();
  device::TimedRun of_exchange;
  const device::TimedRun all = device::time_run(c10::kCPU, [&] {
    std::vector<int64_t> ready{0};
    ranks_->maxima(ready, c10::kCPU, "the measurement of an exchange");
    of_exchange = device::time_run(c10::kCPU, exchange);
  });
  measured_->time += of_exchange.wall;
  measured_->all.wall += all.wall;
  measured_->all.processor += all.processor;
}

void SharingRanks::gather(const at::Tensor& all, const std::string& what) const {
  const int64_t each = all.numel() / size();
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (int64_t rank = 0; rank < size(); ++rank) parts.emplace_back(rank * each, each);
  run([&] {
    ranks_->start_gather(kNumber, all, parts, what);
    ranks_->wait(kNumber);
  });
}

void SharingRanks::sum(const at::Tensor& tensor, const std::string& what) const {
  run([&] {
    ranks_->start_sum(kNumber, tensor, what);
    ranks_->wait(kNumber);
  });
}

std::vector<SharedWay> shared_ways(const Call& call, const Recording& recording, int64_t ranks) {
  return Ways(call, recording, ranks).find();
}

Work shared_work(const Work& whole, const Call& call, const SharedWay& way,
                 const std::shared_ptr<const Sharers>& ranks) {
  std::vector<Geometry> looks;
  for (const std::vector<TensorRef>& outputs : call.outputs) {
    looks.push_back(outputs.empty() ? Geometry() : outputs[0].geometry);
  }
  Work work = whole;
  work.name = "shared " + whole.name;
  work.kernel =
      SharedKernel{whole.kernel, writing_product(call.op.operator_name().name), way.runs,
                   std::move(looks), Gatherer(ranks, "the exchange of the parts of " + whole.name)};
  return work;
}

}  // namespace reprise::runtime::internal::graph
