// Lets the ranks of a process group share out the rows of perceptrons: linear layers with
// element-wise calls between them (row_groups.h). Each rank runs the calls on its own rows, forward
// and backward, and so holds its rows of the hidden tensors alone, which are the widest of the
// step. Where rows leave the perceptron, the ranks gather them. Gradients of weights and biases are
// sums over the ranks, and rounded in another order than those over all rows.
//
// Every call is an op of its own, so a plan may keep the rows of a hidden tensor or make them
// again. In DTensor's words the hidden tensors are Shard(0), what leaves is Replicate(), and the
// gradients of the weights are Partial() and then summed.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/rewrite/rows/row_groups.h"
#include "runtime/rewrite/rows/sharers.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr const char* kSharedRows = "shared-rows";

using Stack = std::vector<c10::IValue>;

Geometry as_rows(const Geometry& whole, int64_t rows, int64_t width) {
  return {
      .sizes = {rows, width}, .strides = {width, 1}, .offset = whole.offset, .dtype = whole.dtype};
}

// A SharedCall is what a kernel knows of its call.
struct SharedCall {
  RowKind kind = RowKind::kElements;
  std::shared_ptr<const Sharers> ranks = {};
  int64_t rows = 0, width = 0;      // of the whole result; a weight and a sum have other rows
  bool hidden = false;              // whether the result stays with this rank
  std::vector<bool> narrowed = {};  // by argument: whether the kernel takes this rank's rows of it
  std::optional<size_t> over = {};  // the argument that is written over
  std::optional<c10::OperatorHandle> op = {};  // of an element-wise call
  bool result_first = false;
  std::string what = {};

  int64_t own_rows() const { return rows / ranks->size(); }
  at::Tensor own(const at::Tensor& whole) const {
    return whole.narrow(0, ranks->rank() * own_rows(), own_rows());
  }
};

// Runs a product or an element-wise call on this rank's rows.
void run_rows(const SharedCall& call, Stack& stack) {
  at::Tensor first;
  for (const c10::IValue& each : stack) {
    if (each.isTensor() && each.toTensor().defined()) {
      first = each.toTensor();
      break;
    }
  }
  const int64_t made = call.hidden ? call.own_rows() : call.rows;
  at::Tensor result =
      call.over ? stack[*call.over].toTensor() : at::empty({made, call.width}, first.options());
  const at::Tensor own = call.hidden ? result : call.own(result);
  if (call.kind == RowKind::kProduct) {
    const at::Tensor bias = stack.size() > 2 ? stack[2].toTensor() : at::Tensor();
    multiply_rows(stack[0].toTensor(), stack[1].toTensor(), bias, own);
  } else {
    stack.insert(call.result_first ? stack.begin() : stack.end(), c10::IValue(own));
    call.op->callBoxed(stack);
  }
  stack.clear();
  if (!call.hidden) call.ranks->gather(result.view({-1}), call.what);
  if (!call.over) stack.emplace_back(std::move(result));
}

// Adds up the rows of this rank, and then those of all ranks.
void run_sum(const SharedCall& call, Stack& stack) {
  const at::Tensor rows = stack[0].toTensor();
  const at::Tensor result = call.kind == RowKind::kWeight ? at::mm(rows.t(), stack[1].toTensor())
                                                          : at::sum(rows, at::IntArrayRef{0});
  stack.clear();
  call.ranks->sum(result, call.what);
  stack.emplace_back(result);
}

Kernel kernel_of(SharedCall call) {
  return [call = std::move(call)](Stack& stack) {
    for (size_t a = 0; a < stack.size(); ++a) {
      if (call.narrowed[a]) stack[a] = call.own(stack[a].toTensor());
    }
    if (call.kind == RowKind::kWeight || call.kind == RowKind::kSum) {
      run_sum(call, stack);
    } else {
      run_rows(call, stack);
    }
  };
}

// Makes the works of one group.
class SharedGroup {
 public:
  SharedGroup(Rewriter& rewriter, const RowGroup& group, std::shared_ptr<const Sharers> ranks)
      : rewriter_(rewriter), group_(group), ranks_(std::move(ranks)) {
    outside_.insert(group.forward_outputs.begin(), group.forward_outputs.end());
    outside_.insert(group.backward_outputs.begin(), group.backward_outputs.end());
  }

  bool is_possible() const {
    return group_.rows % ranks_->size() == 0 && std::ranges::all_of(calls(), [&](const RowCall& c) {
             return c.kind != RowKind::kElements || has_rows_only(c);
           });
  }

  CallRealization realization() {
    CallRealization all{
        .name = kSharedRows, .calls = group_.calls(), .exactness = Exactness::kRounding};
    all.changed = all.calls;
    for (const RowCall& call : calls()) {
      const int32_t work = rewriter_.add_work(work_of(call));
      all.pieces.push_back({"shared", call.call, {work}, {"default"}, false, call.call});
    }
    return all;
  }

 private:
  std::vector<RowCall> calls() const {
    std::vector<RowCall> all = group_.forward;
    all.insert(all.end(), group_.backward.begin(), group_.backward.end());
    return all;
  }

  const StepValue& value(int32_t v) const { return rewriter_.recording().values[v]; }

  // Says whether operands are rows or numbers, and whether the call writes over rows of this rank.
  bool has_rows_only(const RowCall& call) const {
    for (size_t a = 0; a < call.elements->arguments.size(); ++a) {
      const bool is_rows = call.elements->is_whole(a);
      if (call.elements->is_tensor(a) && !is_rows) return false;
    }
    return value(call.result.index).previous < 0 || !outside_.contains(call.result.index);
  }

  // Returns this rank's rows of a hidden value; they are a value of their own.
  int32_t shard(const TensorRef& ref, int64_t width) {
    const auto [known, fresh] = shards_.try_emplace(ref.index, -1);
    if (fresh) {
      const auto size = static_cast<int64_t>(c10::elementSize(ref.geometry.dtype));
      known->second = rewriter_.add_value(group_.rows / ranks_->size() * width * size);
    }
    return known->second;
  }

  // Appends an operand. The rows of one that is not hidden are taken by the kernel.
  void add_operand(Argument argument, bool has_rows, Work& work, SharedCall& call) {
    bool narrowed = false;
    if (has_rows) {
      TensorRef& ref = argument.tensors[0];
      int64_t elements = 1;
      for (const int64_t size : ref.geometry.sizes) elements *= size;
      const int64_t width = elements / group_.rows;
      const bool is_hidden = ref.memory == Memory::kValue && made_.contains(ref.index);
      if (is_hidden) {
        ref.geometry = as_rows(ref.geometry, group_.rows / ranks_->size(), width);
        ref.geometry.offset = 0;
        ref.index = shard(ref, width);
      } else {
        ref.geometry = as_rows(ref.geometry, group_.rows, width);
        narrowed = true;
      }
    }
    call.narrowed.push_back(narrowed);
    work.arguments.push_back(std::move(argument));
  }

  Work work_of(const RowCall& row_call) {
    const step::Call& recorded = rewriter_.recording().calls[row_call.call];
    const bool has_rows = row_call.has_rows();
    SharedCall call{.kind = row_call.kind,
                    .ranks = ranks_,
                    .rows = group_.rows,
                    .width = row_call.width(),
                    .hidden = !outside_.contains(row_call.result.index),
                    .what = "the exchange of rows of " + recorded.name()};
    const bool stays = has_rows && call.hidden;
    Work work{.name = (stays ? "own rows of " : "shared rows of ") + recorded.name(),
              .kernel = {},
              .arguments = {},
              .grad_mode = recorded.grad_mode,
              .apart = true};
    // A new value may move the others, so a reference to one would not last.
    const int32_t previous = value(row_call.result.index).previous;
    if (row_call.kind == RowKind::kElements) {
      call.op = row_call.elements->op;
      call.result_first = row_call.elements->result_first;
      for (size_t a = 0; a < row_call.elements->arguments.size(); ++a) {
        const Argument& argument = row_call.elements->arguments[a];
        const bool is_over = previous >= 0 && argument.kind == ArgumentKind::kTensor &&
                             argument.tensors[0].memory == Memory::kValue &&
                             argument.tensors[0].index == previous;
        if (is_over) call.over = a;
        add_operand(argument, row_call.elements->is_whole(a), work, call);
      }
    } else {
      for (size_t k = 0; k < row_call.operands.size(); ++k) {
        const bool of_rows = row_call.kind != RowKind::kProduct || k == 0;
        add_operand({.kind = ArgumentKind::kTensor, .tensors = {row_call.operands[k]}}, of_rows,
                    work, call);
      }
    }
    int32_t result = row_call.result.index;
    if (stays) {
      made_.insert(result);
      result = shard(row_call.result, call.width);
    }
    if (call.over) {
      work.overwrites = {{result, shard({.memory = Memory::kValue,
                                         .index = previous,
                                         .geometry = row_call.result.geometry},
                                        call.width)}};
    } else {
      work.made = {{0, 0, result}};
    }
    work.kernel = kernel_of(std::move(call));
    return work;
  }

  Rewriter& rewriter_;
  const RowGroup& group_;
  std::shared_ptr<const Sharers> ranks_;
  std::set<int32_t> outside_;          // values that others read
  std::set<int32_t> made_;             // hidden values so far
  std::map<int32_t, int32_t> shards_;  // by hidden value: this rank's rows
};

}  // namespace

void shared_rows(Rewriter& rewriter) {
  const std::shared_ptr<const Sharers>& ranks = rewriter.ranks();
  if (ranks == nullptr || ranks->size() < 2) return;
  for (const RowGroup& group : find_row_groups(rewriter)) {
    SharedGroup shared(rewriter, group, ranks);
    if (shared.is_possible()) rewriter.add(shared.realization());
  }
}

}  // namespace reprise::runtime::internal::rewrite
