// Runs perceptrons by blocks of rows, forward and backward: linear layers with element-wise calls
// between them, such as the perceptron of a transformer. Its hidden tensors are the widest of the
// step. In blocks they never exist as a whole. Rows of products and of element-wise calls do not
// depend on each other; gradients of weights and biases are added up over the blocks.
//
// Realizations differ in what crosses from the forward to the backward:
// - the inputs alone: the backward makes the hidden tensors of a block again, by one more product;
// - what the first products make: the backward makes the results of element-wise calls again.
//
// The kernels are ATen's own but for the sums of rows. Whether blocks leave the bits of the whole
// is tried (row_trial.h). Where they do not, the perceptron stays as it is.
//
// The idea of running a transformer's perceptron by parts of the sequence is in N. Kitaev et al.,
// "Reformer: The Efficient Transformer", ICLR 2020, section 3, and is known as sequence tiling.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/rewrite/rows/row_groups.h"
#include "runtime/rewrite/rows/row_program.h"
#include "runtime/rewrite/rows/row_trial.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr const char* kPerceptronByRows = "perceptron-by-rows";

void add_realization(Rewriter& rewriter, const RowGroup& group, const RowBlocks& blocks,
                     bool products_cross) {
  RowSource forward{group.forward, group.forward_outputs};
  RowSource backward{{}, group.backward_outputs};
  for (const RowCall& call : group.again) {
    if (products_cross && call.kind == RowKind::kProduct) {
      forward.outputs.push_back(call.result.index);
    } else {
      backward.calls.push_back(call);
    }
  }
  std::ranges::copy(group.backward, std::back_inserter(backward.calls));
  Work first = work_of(compile(forward, blocks), "perceptron by rows");
  Work second = work_of(compile(backward, blocks), "perceptron backward by rows");
  CallRealization realization{.name = kPerceptronByRows, .calls = group.calls()};
  realization.changed = realization.calls;
  realization.pieces.push_back(
      {"rows", group.forward_after, {rewriter.add_work(std::move(first))}, {"default"}});
  realization.pieces.push_back({"rows",
                                group.backward_after,
                                {rewriter.add_work(std::move(second))},
                                {"default"},
                                false,
                                group.backward.front().call});
  rewriter.add(std::move(realization));
}

}  // namespace

void perceptron_by_rows(Rewriter& rewriter) {
  RowTrials trials(rewriter.recording());
  for (const RowGroup& group : find_row_groups(rewriter)) {
    std::vector<RowCall> calls = group.forward;
    std::ranges::copy(group.backward, std::back_inserter(calls));
    const std::optional<RowBlocks> blocks = find_blocks(calls, group.rows, trials);
    if (!blocks) continue;
    add_realization(rewriter, group, *blocks, /*products_cross=*/false);
    const bool has_product = std::ranges::any_of(
        group.again, [](const RowCall& call) { return call.kind == RowKind::kProduct; });
    if (has_product) add_realization(rewriter, group, *blocks, /*products_cross=*/true);
  }
}

}  // namespace reprise::runtime::internal::rewrite
