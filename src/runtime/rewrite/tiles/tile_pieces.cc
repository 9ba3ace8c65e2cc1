#include "runtime/rewrite/tiles/tile_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace reprise::runtime::internal::rewrite {

namespace {

Work work_of(const TileProgram& program, const std::vector<int32_t>& outputs,
             const std::string& name) {
  Work work{
      .name = name + " " + operators_of(program), .kernel = kernel_of(program), .arguments = {}};
  for (const TileProgram::Input& input : program.inputs) {
    work.arguments.push_back({.kind = ArgumentKind::kTensor, .tensors = {input.ref}});
  }
  // The kernel does not read this. It tells works apart that do different things.
  work.arguments.push_back({.constant = signature_of(program)});
  for (size_t k = 0; k < outputs.size(); ++k) {
    const int64_t over = program.outputs[k].over;
    if (over < 0) {
      work.made.push_back({k, 0, outputs[k]});
    } else {
      work.overwrites.emplace_back(outputs[k], program.inputs[over].ref.index);
    }
  }
  return work;
}

class PieceMaker {
 public:
  PieceMaker(Rewriter& rewriter, const TileChoice& choice, const std::string& alternative,
             const std::vector<TilePiece>& pieces)
      : rewriter_(rewriter), alternative_(alternative), pieces_(pieces), calls_(choice.calls()) {}

  CallRealization::Piece piece_of(size_t p) {
    const TilePiece& piece = pieces_[p];
    TileProgram program = compile(piece.source);
    const std::string name = piece.name.empty() ? "tiles" : piece.name;
    const std::string title = fmt::format("{}({})", name, operators_of(program));
    CallRealization::Piece made{title, piece.after, {}, {"default"}};
    Work fresh = work_of(program, piece.source.outputs, name);
    bool over = false;
    std::vector<size_t> taken;
    for (size_t output = 0; output < program.outputs.size(); ++output) {
      for (size_t input = 0; input < program.inputs.size(); ++input) {
        if (std::ranges::find(taken, input) != taken.end() ||
            !may_take_over(program, p, output, input) || !write_over(program, output, input)) {
          continue;
        }
        taken.push_back(input);
        over = true;
        break;
      }
    }
    made.works.push_back(rewriter_.add_work(std::move(fresh)));
    if (over) {
      made.works.push_back(
          rewriter_.add_work(work_of(program, piece.source.outputs, name + " in place")));
      made.names.emplace_back(alternative_, "in-place");
    }
    return made;
  }

 private:
  // Returns whether the memory of the input is of the right size, and is read by nothing that runs
  // later.
  bool may_take_over(const TileProgram& program, size_t p, size_t output, size_t input) const {
    const TensorRef& ref = program.inputs[input].ref;
    const int32_t made = pieces_[p].source.outputs[output];
    const auto& values = rewriter_.recording().values;
    if (ref.memory != Memory::kValue || ref.geometry.offset != 0 ||
        rewriter_.is_result(ref.index) || ref.geometry.dtype != program.outputs[output].dtype ||
        values[ref.index].bytes != values[made].bytes) {
      return false;
    }
    // The value may be looked at in several ways. Each of them is an input of its own.
    for (size_t other = 0; other < program.inputs.size(); ++other) {
      if (other != input && program.inputs[other].ref.memory == Memory::kValue &&
          program.inputs[other].ref.index == ref.index) {
        return false;
      }
    }
    for (const int32_t reader : rewriter_.readers(ref.index)) {
      const bool is_inside = std::ranges::binary_search(calls_, reader);
      if (!is_inside && reader > pieces_[p].after) return false;
    }
    for (size_t other = 0; other < pieces_.size(); ++other) {
      if (other == p || pieces_[other].after < pieces_[p].after) continue;
      if (values_entering(pieces_[other].source).contains(ref.index)) return false;
    }
    return true;
  }

  Rewriter& rewriter_;
  const std::string& alternative_;
  const std::vector<TilePiece>& pieces_;
  const std::vector<int32_t> calls_;
};

}  // namespace

std::vector<int32_t> values_leaving(const Rewriter& rewriter, const TileGroups& groups,
                                    const std::vector<int32_t>& calls,
                                    const std::set<int32_t>& readers_inside) {
  std::vector<int32_t> leaving;
  for (const int32_t c : calls) {
    const int32_t value = groups.element_call(c).result.index;
    const bool is_read = std::ranges::any_of(
        rewriter.readers(value), [&](int32_t reader) { return !readers_inside.contains(reader); });
    if (is_read || rewriter.is_result(value)) leaving.push_back(value);
  }
  return leaving;
}

std::set<int32_t> values_entering(const TileSource& source) {
  std::set<int32_t> made, entering;
  for (const ElementCall& call : source.calls) {
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kValue && !made.contains(ref.index) && ref.index != source.ones) {
          entering.insert(ref.index);
        }
      }
    }
    made.insert(call.result.index);
  }
  return entering;
}

void add_pieces(Rewriter& rewriter, const TileChoice& choice, const std::string& name,
                Exactness exactness, const std::vector<TilePiece>& pieces) {
  CallRealization realization{.name = name, .calls = choice.calls(), .exactness = exactness};
  realization.changed = realization.calls;
  for (const TilePiece& piece : pieces) {
    int64_t unit = 1;
    for (const ElementCall& call : piece.source.calls) unit = std::lcm(unit, call.unit);
    if (!piece.source.calls.empty() && tile_of(piece.source.calls[0].elements, unit) == 0) return;
  }
  PieceMaker maker(rewriter, choice, name, pieces);
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].source.outputs.empty()) continue;
    realization.pieces.push_back(maker.piece_of(p));
  }
  if (!realization.pieces.empty()) rewriter.add(std::move(realization));
}

}  // namespace reprise::runtime::internal::rewrite
