// Runs connected groups of element-wise calls as one compiled kernel each. Between the calls of a
// group elements stay in registers. In which ways a forward and its backward may run, crossing.h
// says.
//
// A compiler makes the kernels (region_compiler.h); without one this row finds nothing. Equal
// regions are one kernel, and a re-run calls the kernel that ran before. A kernel is offered only
// if it passes the trial: all bytes of its results are those of the calls one by one. Where it
// fails, its calls run one by one beside the kernels of other groups, and the groups are tried once
// more without the functions that differ most often (exp, tanh, ...).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/rewrite/regions/region_call.h"
#include "runtime/rewrite/regions/region_trial.h"
#include "runtime/rewrite/tiles/crossing.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// A FusedPiece is a group with its kernel.
struct FusedPiece {
  TilePiece piece = {};
  RegionText text = {};
  std::vector<int64_t> over = {};  // by output: the input that it may be written over; -1: none
  RegionKernel kernel = {};
  std::string refusal = {};
};

// A FusedChoice has the realizations of a choice, each as a list of pieces.
struct FusedChoice {
  TileChoice choice = {};
  std::vector<std::vector<FusedPiece>> realizations = {};
};

// Returns whether nothing that runs behind the piece reads the value.
bool is_last_reader(const Rewriter& rewriter, int32_t value, const std::vector<int32_t>& calls,
                    const std::vector<TilePiece>& pieces, size_t p) {
  for (const int32_t reader : rewriter.readers(value)) {
    const bool is_inside = std::ranges::binary_search(calls, reader);
    if (!is_inside && reader > pieces[p].after) return false;
  }
  for (size_t other = 0; other < pieces.size(); ++other) {
    if (other == p) continue;
    // The other piece may be refused. Its calls then run in their own places.
    int32_t last = pieces[other].after;
    for (const ElementCall& call : pieces[other].source.calls) last = std::max(last, call.call);
    if (last < pieces[p].after) continue;
    if (values_entering(pieces[other].source).contains(value)) return false;
  }
  return true;
}

// Returns for each output the input that it may be written over, with the layout of the output.
std::vector<int64_t> over_of(const Rewriter& rewriter, const RegionText& text,
                             const std::vector<int32_t>& calls,
                             const std::vector<TilePiece>& pieces, size_t p) {
  std::vector<int64_t> over(text.outputs.size(), -1);
  if (!text.in_order) return over;
  const auto& values = rewriter.recording().values;
  for (size_t k = 0; k < text.outputs.size(); ++k) {
    for (size_t i = 0; i < text.inputs.size(); ++i) {
      const TensorRef& ref = text.inputs[i].ref;
      const auto uses = std::ranges::count_if(text.inputs, [&](const RegionText::Input& one) {
        return one.ref.memory == Memory::kValue && one.ref.index == ref.index;
      });
      if (std::ranges::find(over, static_cast<int64_t>(i)) != over.end() ||
          ref.memory != Memory::kValue || ref.geometry != text.outputs[k].geometry ||
          values[ref.index].bytes != values[text.outputs[k].index].bytes || uses != 1 ||
          rewriter.is_result(ref.index) || !is_last_reader(rewriter, ref.index, calls, pieces, p)) {
        continue;
      }
      over[k] = static_cast<int64_t>(i);
      break;
    }
  }
  return over;
}

class RegionFuser {
 public:
  RegionFuser(Rewriter& rewriter, bool with_dear) : rewriter_(rewriter), with_dear_(with_dear) {}

  // Finds the groups whose calls are not in `done`, and adds the calls of those that are fused.
  void run(std::set<int32_t>& done) {
    const TileGroups groups(rewriter_, {.find = [&](int32_t c) -> std::optional<ElementCall> {
                                          if (done.contains(c)) return std::nullopt;
                                          auto call = region_call(rewriter_.recording(), c);
                                          if (call && !with_dear_ && is_dear(*call))
                                            return std::nullopt;
                                          return call;
                                        },
                                        .in_tiles = false});
    std::vector<FusedChoice> all;
    for (const TileChoice& choice : groups.choices()) all.push_back(described(groups, choice));
    compile(all);
    for (const FusedChoice& one : all) {
      if (!add(one)) continue;
      const std::vector<int32_t> calls = one.choice.calls();
      done.insert(calls.begin(), calls.end());
    }
    for (const auto& [what, count] : refused_) {
      rewriter_.refuse(fmt::format("fused-regions: {}, {} times", what, count));
    }
  }

 private:
  FusedChoice described(const TileGroups& groups, const TileChoice& choice) const {
    FusedChoice described{.choice = choice};
    const std::vector<int32_t> calls = choice.calls();
    for (const std::vector<TilePiece>& pieces : crossings(rewriter_, groups, choice)) {
      std::vector<FusedPiece> list;
      for (size_t p = 0; p < pieces.size(); ++p) {
        FusedPiece one{.piece = pieces[p]};
        if (pieces[p].source.outputs.empty()) {
          list.push_back(std::move(one));
          continue;
        }
        one.text = text_of(pieces[p].source, rewriter_.recording());
        one.over = over_of(rewriter_, one.text, calls, pieces, p);
        list.push_back(std::move(one));
      }
      described.realizations.push_back(std::move(list));
    }
    return described;
  }

  template <class Visit>
  static void for_each_piece(std::vector<FusedChoice>& all, Visit&& visit) {
    for (FusedChoice& choice : all) {
      for (auto& realization : choice.realizations) {
        for (FusedPiece& one : realization) {
          if (!one.text.text.empty()) visit(one);
        }
      }
    }
  }

  // A group of one call is left to its own kernel.
  static bool is_worth_it(const FusedPiece& one) { return one.text.calls.size() >= 2; }

  void compile(std::vector<FusedChoice>& all) {
    std::vector<RegionText> texts;
    for_each_piece(all, [&](FusedPiece& one) {
      if (is_worth_it(one)) texts.push_back(one.text);
    });
    const std::vector<RegionKernel> kernels = compile_regions(texts);
    std::map<std::pair<std::string, std::vector<int64_t>>, std::string> tried;
    size_t next = 0;
    for_each_piece(all, [&](FusedPiece& one) {
      if (!is_worth_it(one)) {
        one.refusal = "it is a single call";
        return;
      }
      one.kernel = kernels[next++];
      one.refusal = one.kernel.refusal;
      if (one.refusal.empty()) {
        const auto [known, fresh] = tried.try_emplace({one.text.text, one.over});
        if (fresh) {
          known->second = trial_of(one.text, one.kernel, one.over, rewriter_.recording());
        }
        one.refusal = known->second;
      }
      if (!one.refusal.empty()) ++refused_[one.text.operators + ": " + one.refusal];
    });
  }

  // Adds the realizations of a choice. Returns false if nothing of it is fused.
  bool add(const FusedChoice& one) {
    bool some = false;
    for (size_t r = 0; r < one.realizations.size(); ++r) {
      const std::vector<FusedPiece>& pieces = one.realizations[r];
      const bool all = std::ranges::all_of(
          pieces, [](const FusedPiece& p) { return p.refusal.empty() || p.text.calls.empty(); });
      if (r > 0) {
        // The values that the piece makes again are needed where the piece is refused.
        if (all) some = add(one.choice, pieces, kBoth) || some;
        continue;
      }
      some = add(one.choice, pieces, kBoth) || some;
      const auto in = [&](Phase phase) {
        return std::ranges::any_of(
            pieces, [&](const FusedPiece& p) { return p.refusal.empty() && is_of(p, phase); });
      };
      if (in(Phase::kForward) && in(Phase::kBackward)) {
        add(one.choice, pieces, kForwardAlone);
        add(one.choice, pieces, kBackwardAlone);
      }
    }
    return some;
  }

  enum Part : uint8_t { kBoth, kForwardAlone, kBackwardAlone };

  bool is_of(const FusedPiece& one, Phase phase) const {
    return rewriter_.recording().calls[one.piece.after].phase == phase;
  }

  bool add(const TileChoice& choice, const std::vector<FusedPiece>& pieces, Part part) {
    CallRealization realization{.name = "fused-regions", .calls = choice.calls()};
    std::set<int32_t> as_they_are;
    for (const auto* groups : {&choice.forward, &choice.backward}) {
      for (const TileGroup& group : *groups) {
        as_they_are.insert(group.calls.begin(), group.calls.end());
      }
    }
    for (const FusedPiece& one : pieces) {
      const bool wanted =
          part == kBoth || is_of(one, part == kForwardAlone ? Phase::kForward : Phase::kBackward);
      if (!wanted || !one.refusal.empty()) continue;
      // The calls that the piece makes again run in the piece of their own group, too.
      for (const ElementCall& call : one.piece.source.calls) as_they_are.erase(call.call);
      if (one.text.text.empty()) continue;
      realization.pieces.push_back(piece_of(one));
    }
    if (realization.pieces.empty()) return false;
    for (const int32_t c : as_they_are) {
      if (rewriter_.recording().calls[c].random) return false;
      realization.pieces.push_back({.after = c, .as_it_is = true});
    }
    for (const int32_t c : realization.calls) {
      // Both parts together are a realization of their own, which no combination needs to repeat.
      if (part != kBoth || !as_they_are.contains(c)) realization.changed.push_back(c);
    }
    std::ranges::stable_sort(realization.pieces, {}, &CallRealization::Piece::after);
    rewriter_.add(std::move(realization));
    return true;
  }

  CallRealization::Piece piece_of(const FusedPiece& one) {
    const std::string name = one.piece.name.empty() ? "fused" : one.piece.name;
    CallRealization::Piece made{
        fmt::format("{}({})", name, one.text.operators), one.piece.after, {}, {"default"}};
    const std::vector<int64_t> nowhere(one.over.size(), -1);
    made.works.push_back(rewriter_.add_work(work_of(one.text, one.kernel, nowhere, name)));
    if (one.over != nowhere) {
      made.works.push_back(
          rewriter_.add_work(work_of(one.text, one.kernel, one.over, name + " in place")));
      made.names.emplace_back("fused-regions", "in-place");
    }
    return made;
  }

  Rewriter& rewriter_;
  const bool with_dear_;
  std::map<std::string, int64_t> refused_;  // how often, by what and why
};

}  // namespace

void fused_regions(Rewriter& rewriter) {
  std::set<int32_t> done;
  RegionFuser(rewriter, /*with_dear=*/true).run(done);
  RegionFuser(rewriter, /*with_dear=*/false).run(done);
}

}  // namespace reprise::runtime::internal::rewrite
