#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

using step::Buckets;
using step::Updates;
using step::Works;

namespace {

struct Row {
  const char* name;
  const char* description;
  void (*find)(Rewriter&);  // for a captured step; null: for chains only
  Exactness exactness = Exactness::kBitwise;
  bool in_chain = false;    // an option of saved/keep_less.h
  bool on_request = false;  // used only where AlternativeOptions::only names it
};

// Each alternative is one row. The file of a row has the name of its function.
constexpr std::array kRows = {
    // These rows come before the rows that would take some of their calls.
    Row{"linear-cross-entropy-by-rows",
        "runs a linear layer, cross-entropy and their backwards some rows at a time; where that "
        "rounds, it has to be allowed",
        linear_cross_entropy},
    Row{"perceptron-by-rows",
        "runs linear layers with element-wise ops between them, wider inside than outside, some "
        "rows at a time, forward and backward; used only if it is named",
        perceptron_by_rows, Exactness::kBitwise, /*in_chain=*/false, /*on_request=*/true},
    Row{"shared-rows",
        "lets ranks that share out the work of the step run such layers on their own rows alone, "
        "forward and backward, and gather what leaves them",
        shared_rows, Exactness::kRounding},
    Row{"batch-norm-by-samples",
        "runs a convolution, batch norm, activation, max pooling and their backwards some samples "
        "at a time, with the statistics of the whole batch; the convolution runs four times",
        batch_norm_by_samples, Exactness::kRounding},
    Row{"in-place",
        "lets element-wise ops and soft-max write over an operand that is not needed any more",
        in_place},
    // These rows come before the rows that vary a single call of a group.
    Row{"fused-regions",
        "runs connected groups of element-wise ops as one compiled kernel, forward and backward, "
        "if "
        "it has their bits; used only if it is named, and only with a compiler",
        fused_regions, Exactness::kBitwise, /*in_chain=*/false, /*on_request=*/true},
    Row{"tiles",
        "runs connected groups of element-wise ops tile by tile, forward and backward, and makes "
        "what the backward reads again in its tile; used only if it is named",
        tiles, Exactness::kBitwise, /*in_chain=*/false, /*on_request=*/true},
    Row{"forward-ad",
        "keeps the derivative of such a group, made in its forward, in place of what its backward "
        "reads (nested Forward-AD)",
        forward_ad, Exactness::kRounding},
    // These rows follow the variants of single calls, which they take over, and the groups, and come
    // before the rows that may be combined with them.
    Row{"compressed-8",
        "keeps what smooth backwards read in 8 bits an element, with a range for each 256 of them",
        compressed_8, Exactness::kApproximate},
    Row{"compressed-4", "does the same in 4 bits an element; used only if it is named",
        compressed_4, Exactness::kApproximate, /*in_chain=*/false, /*on_request=*/true},
    Row{"olive-8",
        "does the same in 8 bits, and outliers take the bits of their neighbours (OliVe); used "
        "only "
        "if it is named",
        olive_8, Exactness::kApproximate, /*in_chain=*/false, /*on_request=*/true},
    Row{"olive-4", "does the same in 4 bits, as olive-8; used only if it is named", olive_4,
        Exactness::kApproximate, /*in_chain=*/false, /*on_request=*/true},
    Row{"two-call-convolution",
        "splits the backward of a convolution in two: gradients of the weights, then of the input",
        two_call_convolution},
    // This row follows two-call-convolution, because it varies the second call of that row.
    Row{"convolution-by-samples",
        "runs a convolution, or the gradient of its input, some samples at a time",
        convolution_by_samples},
    Row{"cross-entropy-from-logits",
        "keeps the logits of a cross-entropy, in 16 bits if they come so, and makes the "
        "log-soft-max of some rows at a time again in the backward",
        cross_entropy_from_logits},
    Row{"cross-entropy-by-rows",
        "joins the backwards of log-soft-max and negative log likelihood, some rows at a time",
        cross_entropy_by_rows},
    Row{"two-step-batch-norm",
        "splits a batch norm in two: one op computes the statistics once, one normalises with them",
        two_step_batch_norm},
    Row{"batch-norm-by-channels",
        "runs the backward of a batch norm some channels at a time, over one of its operands",
        batch_norm_by_channels},
    Row{"group-norm-by-groups",
        "runs the backward of a group norm some groups at a time, over one of its operands",
        group_norm_by_groups},
    Row{"backward-by-result",
        "lets the backward of hard tanh (ReLU6) or leaky ReLU read the result in place of the "
        "input; a copy of the input is then not made",
        backward_by_result},
    Row{"one-bit-mask",
        "keeps one bit per element for the backward of an activation with a kink, or of dropout",
        one_bit_mask, Exactness::kBitwise, /*in_chain=*/true},
    Row{"small-indices", "keeps the places of max pooling's maxima in two or four bytes, not eight",
        small_indices, Exactness::kBitwise, /*in_chain=*/true},
    // The next two rows follow the rows whose variants and realizations they vary.
    Row{"late-gradient",
        "makes a gradient that is larger than its operands only right before it is read",
        late_gradient},
    Row{"copied-part", "copies the part of a gradient that is still read, and frees the rest",
        copied_part},
    // A captured step needs no such row: its plan re-runs single ops where that pays.
    Row{"rebuild",
        "makes results of activations and norms again from what a stage keeps anyway, at the "
        "backward that reads them",
        nullptr, Exactness::kBitwise, /*in_chain=*/true},
};

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Row& row_of(const std::string& name) {
  const auto row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& one) { return one.name == name; });
  if (row != kRows.end()) return *row;
  std::vector<std::string> known;
  for (const Row& one : kRows) known.emplace_back(one.name);
  throw InputError(
      fmt::format("there is no alternative \"{}\"; there are {}", name, fmt::join(known, ", ")));
}

void validate_names(const AlternativeOptions& options) {
  for (const std::string& name : options.without) row_of(name);
  for (const std::string& name : options.only) {
    const Row& row = row_of(name);
    if (row.exactness <= options.allow) continue;
    throw InputError(
        fmt::format("the alternative \"{}\" is of exactness \"{}\", which has to be allowed", name,
                    to_string(row.exactness)));
  }
}

}  // namespace

RewrittenStep find_alternatives(Recording recording, Works works, Updates updates,
                                const Buckets& buckets, const AlternativeOptions& options,
                                std::shared_ptr<const Sharers> ranks) {
  validate(options);
  Rewriter rewriter(std::move(recording), std::move(works), std::move(updates), buckets,
                    options.allow, std::move(ranks));
  for (const Row& row : kRows) {
    const bool wanted = options.only.empty() ? !row.on_request : has(options.only, row.name);
    const bool allowed = row.exactness <= options.allow && !has(options.without, row.name);
    if (row.find != nullptr && wanted && allowed) row.find(rewriter);
  }
  return rewriter.take();
}

}  // namespace reprise::runtime::internal::rewrite

namespace reprise::runtime {

std::vector<AlternativeInfo> alternatives() {
  std::vector<AlternativeInfo> all;
  for (const internal::rewrite::Row& row : internal::rewrite::kRows) {
    all.push_back({row.name, row.description, row.exactness, row.find != nullptr, row.in_chain});
  }
  return all;
}

void validate(const AlternativeOptions& options) {
  internal::rewrite::validate_names(options);
  const bool some = std::any_of(options.only.begin(), options.only.end(), [](const std::string& n) {
    return internal::rewrite::row_of(n).find != nullptr;
  });
  if (some || options.only.empty()) return;
  throw InputError(
      fmt::format("the alternative \"{}\" is for stages of a chain, not for captured "
                  "steps (graph mode)",
                  options.only.front()));
}

void validate_for_chain(const AlternativeOptions& options) {
  internal::rewrite::validate_names(options);
  for (const std::string& name : options.only) {
    if (internal::rewrite::row_of(name).in_chain) continue;
    throw InputError(fmt::format(
        "the alternative \"{}\" is for captured steps (graph mode), not for stages of a chain",
        name));
  }
}

}  // namespace reprise::runtime
