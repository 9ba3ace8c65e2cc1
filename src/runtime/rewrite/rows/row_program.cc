#include "runtime/rewrite/rows/row_program.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/rewrite/rows/column_sum.h"
#include "runtime/rewrite/tiles/tile_trial.h"
#include "runtime/rewrite/words.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::rewrite {

using From = RowProgram::From;
using Place = RowProgram::Place;

namespace {

constexpr int64_t kTile = 1 << 16;

int64_t size_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

// The calls of one step: several element-wise ones, or one of another kind.
using RowStage = std::vector<const RowCall*>;

// Products run as early as their operands are there, so that the element-wise calls between them
// become one step.
std::vector<RowStage> stages_of(const std::vector<RowCall>& calls) {
  std::set<int32_t> waiting;  // values that are not made yet
  for (const RowCall& call : calls) waiting.insert(call.result.index);
  const auto is_ready = [&](const RowCall& call) {
    bool ready = true;
    call.for_each_operand([&](const TensorRef& ref, bool) {
      ready = ready && (ref.memory != Memory::kValue || !waiting.contains(ref.index));
    });
    return ready;
  };
  std::vector<bool> done(calls.size(), false);
  std::vector<RowStage> stages;
  for (size_t left = calls.size(); left > 0;) {
    for (const bool elements : {false, true}) {
      RowStage together;
      for (size_t c = 0; c < calls.size(); ++c) {
        if (done[c] || (calls[c].kind == RowKind::kElements) != elements || !is_ready(calls[c])) {
          continue;
        }
        done[c] = true;
        --left;
        waiting.erase(calls[c].result.index);
        if (!elements) {
          stages.push_back({&calls[c]});
        } else {
          together.push_back(&calls[c]);
        }
      }
      if (!together.empty()) stages.push_back(std::move(together));
    }
  }
  return stages;
}

class RowCompiler {
 public:
  RowCompiler(const RowSource& source, const RowBlocks& blocks)
      : source_(source), stages_(stages_of(source.calls)) {
    program_.blocks = blocks;
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (const RowCall* call : stages_[s]) {
        call->for_each_operand([&](const TensorRef& ref, bool) {
          if (ref.memory == Memory::kValue) last_use_[ref.index] = s;
        });
      }
    }
    for (const int32_t value : source.outputs) {
      const auto made = std::ranges::find_if(
          source.calls, [&](const RowCall& call) { return call.result.index == value; });
      program_.outputs.push_back({value, made->result.geometry.sizes, made->result.geometry.dtype});
    }
  }

  RowProgram run() {
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].front()->kind == RowKind::kElements) {
        add_elements(s);
      } else {
        add_call(*stages_[s].front());
      }
      give_back(s);
    }
    return std::move(program_);
  }

 private:
  // Leaves only those buffers taken whose values a stage behind s reads.
  void give_back(size_t s) {
    free_.clear();
    for (size_t buffer = 0; buffer < program_.buffers.size(); ++buffer) free_.insert(buffer);
    for (const auto& [value, place] : made_) {
      const auto last = last_use_.find(value);
      const bool is_read = last != last_use_.end() && last->second > s;
      if (place.from == From::kBuffer && is_read) free_.erase(place.index);
    }
  }

  void add_call(const RowCall& call) {
    RowProgram::Step step{.kind = call.kind};
    call.for_each_operand([&](const TensorRef& ref, bool has_rows) {
      const int64_t width = has_rows ? ref.geometry.sizes[1] : 0;
      step.operands.push_back(place_of(ref, has_rows, width));
    });
    step.results.push_back(make(call));
    program_.steps.push_back(std::move(step));
  }

  void add_elements(size_t s) {
    TileSource source;
    for (const RowCall* call : stages_[s]) {
      source.calls.push_back(*call->elements);
      const int32_t value = call->result.index;
      const auto last = last_use_.find(value);
      if (is_output(value) || (last != last_use_.end() && last->second > s)) {
        source.outputs.push_back(value);
      }
    }
    RowProgram::Step step{.tiles = compile(source)};
    TileProgram& tiles = step.tiles;
    int64_t unit = kTileAlignment;
    for (const ElementCall& call : source.calls) unit = std::lcm(unit, call.unit);
    tiles.tile = std::max(unit, kTile / unit * unit);
    for (const TileProgram::Input& input : tiles.inputs) {
      step.operands.push_back(place_of(input.ref, /*has_rows=*/false, /*width=*/0));
    }
    for (size_t output = 0; output < source.outputs.size(); ++output) {
      const int32_t value = source.outputs[output];
      const RowCall& maker = **std::ranges::find_if(
          stages_[s], [&](const RowCall* call) { return call->result.index == value; });
      const std::optional<size_t> over =
          is_output(value) ? std::nullopt : over_input(s, step, output);
      step.results.push_back(make(maker, over));
    }
    program_.steps.push_back(std::move(step));
  }

  // Returns the buffer of an input of the tiles that nobody reads later, and that the output may be
  // written over.
  std::optional<size_t> over_input(size_t s, RowProgram::Step& step, size_t output) {
    TileProgram& tiles = step.tiles;
    for (size_t input = 0; input < tiles.inputs.size(); ++input) {
      const Place& place = step.operands[input];
      const int32_t value = tiles.inputs[input].ref.index;
      const auto same = [&](const Place& other) {
        return other.from == From::kBuffer && other.index == place.index;
      };
      if (place.from != From::kBuffer || last_use_[value] > s ||
          std::ranges::any_of(step.results, same) ||
          std::ranges::count_if(step.operands, same) > 1 ||
          place.dtype != tiles.outputs[output].dtype || !write_over(tiles, output, input)) {
        continue;
      }
      return place.index;
    }
    return std::nullopt;
  }

  bool is_output(int32_t value) const {
    return std::ranges::find(source_.outputs, value) != source_.outputs.end();
  }

  // Returns where an operand lies.
  Place place_of(const TensorRef& ref, bool has_rows, int64_t width) {
    const auto made = ref.memory == Memory::kValue ? made_.find(ref.index) : made_.end();
    if (made != made_.end()) return made->second;
    const auto found = std::ranges::find(program_.inputs, ref);
    const Place place{From::kInput, static_cast<size_t>(found - program_.inputs.begin()), has_rows,
                      width, ref.geometry.dtype};
    if (found == program_.inputs.end()) program_.inputs.push_back(ref);
    return place;
  }

  // Finds a place for the result of a call.
  Place make(const RowCall& call, std::optional<size_t> buffer = {}) {
    const at::ScalarType dtype = call.result.geometry.dtype;
    Place place{From::kBuffer, 0, call.has_rows(), call.has_rows() ? call.width() : 0, dtype};
    const auto output = std::ranges::find(program_.outputs, call.result.index,
                                          [](const RowProgram::Output& one) { return one.value; });
    if (output != program_.outputs.end()) {
      place.from = From::kOutput;
      place.index = static_cast<size_t>(output - program_.outputs.begin());
    } else {
      place.index = buffer ? *buffer : take(place.width * size_of(dtype));
      free_.erase(place.index);
    }
    made_[call.result.index] = place;
    return place;
  }

  size_t take(int64_t bytes) {
    for (const size_t buffer : free_) {
      if (program_.buffers[buffer] == bytes) return buffer;
    }
    program_.buffers.push_back(bytes);
    return program_.buffers.size() - 1;
  }

  const RowSource& source_;
  const std::vector<RowStage> stages_;
  std::map<int32_t, size_t> last_use_;  // by value: the last stage that reads it
  std::map<int32_t, Place> made_;       // by value
  std::set<size_t> free_;               // buffers
  RowProgram program_;
};

// Runs the blocks of a program, on tensors that are there.
class RowRunner {
 public:
  RowRunner(const RowProgram& program, std::vector<at::Tensor> inputs,
            std::vector<at::Tensor> outputs)
      : program_(program), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
    const int64_t rows = largest_block(program.blocks);
    const auto bytes = at::TensorOptions(at::kByte);
    for (const int64_t row : program.buffers) buffers_.push_back(at::empty({rows * row}, bytes));
    sums_.resize(program.steps.size());
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const RowProgram::Step& step = program.steps[s];
      if (step.kind != RowKind::kSum) continue;
      const Place& rows_of = step.operands[0];
      sums_[s].emplace(program.blocks.rows, rows_of.width,
                       at::TensorOptions(rows_of.dtype));
    }
  }

  void run() {
    for_each_block(program_.blocks, [&](int64_t first, int64_t count) {
      for (size_t s = 0; s < program_.steps.size(); ++s) run_step(s, first, count);
    });
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      if (sums_[s]) sums_[s]->finish(outputs_[program_.steps[s].results[0].index]);
    }
  }

  std::vector<at::Tensor> take_outputs() { return std::move(outputs_); }

 private:
  void run_step(size_t s, int64_t first, int64_t count) {
    const RowProgram::Step& step = program_.steps[s];
    const auto operand = [&](size_t k) {
      return k < step.operands.size() ? block_of(step.operands[k], first, count) : at::Tensor();
    };
    switch (step.kind) {
      case RowKind::kProduct:
        multiply_rows(operand(0), operand(1), operand(2), block_of(step.results[0], first, count));
        break;
      case RowKind::kWeight:
        add_weight(operand(0), operand(1), first, program_.blocks.weight,
                   outputs_[step.results[0].index]);
        break;
      case RowKind::kSum:
        sums_[s]->add(operand(0));
        break;
      case RowKind::kElements:
        run_elements(step, first, count);
        break;
    }
  }

  void run_elements(const RowProgram::Step& step, int64_t first, int64_t count) {
    const int64_t width = step.results[0].width, begin = first * width;
    const auto memory = [&](const Place& place) -> TileMemory {
      if (place.from != From::kBuffer) return {whole(place)};
      return {block_of(place, first, count), begin};
    };
    std::vector<TileMemory> inputs, outputs;
    for (const Place& place : step.operands) inputs.push_back(memory(place));
    for (const Place& place : step.results) outputs.push_back(memory(place));
    run_tiles(step.tiles, std::move(inputs), outputs, begin, begin + count * width);
  }

  const at::Tensor& whole(const Place& place) const {
    return place.from == From::kInput ? inputs_[place.index] : outputs_[place.index];
  }

  // Returns the rows [first, first + count) as a matrix; all of it if the place has no rows.
  at::Tensor block_of(const Place& place, int64_t first, int64_t count) const {
    if (!place.has_rows) return whole(place);
    if (place.from != From::kBuffer) {
      const at::Tensor& all = whole(place);
      return tensor_on(all.storage(), {.sizes = {count, place.width},
                                       .strides = {place.width, 1},
                                       .offset = all.storage_offset() + first * place.width,
                                       .dtype = place.dtype});
    }
    return tensor_on(
        buffers_[place.index].storage(),
        {.sizes = {count, place.width}, .strides = {place.width, 1}, .dtype = place.dtype});
  }

  const RowProgram& program_;
  const std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> outputs_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::optional<ColumnSum>> sums_;  // by step
};

void run_rows(const RowProgram& program, std::vector<c10::IValue>& stack) {
  std::vector<at::Tensor> inputs, outputs;
  for (size_t k = 0; k < program.inputs.size(); ++k) inputs.push_back(stack[k].toTensor());
  for (const RowProgram::Output& output : program.outputs) {
    outputs.push_back(at::empty(output.sizes, at::TensorOptions(output.dtype)));
  }
  stack.clear();
  RowRunner runner(program, std::move(inputs), std::move(outputs));
  runner.run();
  for (at::Tensor& output : runner.take_outputs()) stack.emplace_back(std::move(output));
}

// Returns a text that is equal for programs that do the same.
std::string text_of(const RowProgram& program) {
  std::ostringstream text;
  const auto write = [&](const Place& place) {
    text << ' ' << static_cast<int>(place.from) << '.' << place.index << '.' << place.width;
  };
  for (const RowProgram::Step& step : program.steps) {
    text << static_cast<int>(step.kind);
    for (const Place& place : step.operands) write(place);
    text << " ->";
    for (const Place& place : step.results) write(place);
    if (step.kind == RowKind::kElements) text << signature_of(step.tiles);
    text << ';';
  }
  text << program.blocks.rows << ' ' << program.blocks.block << ' ' << program.blocks.weight;
  return text.str();
}

}  // namespace

RowProgram compile(const RowSource& source, const RowBlocks& blocks) {
  return RowCompiler(source, blocks).run();
}

Work work_of(RowProgram program, const std::string& name) {
  Work work{.name = name, .kernel = {}, .arguments = {}};
  for (const TensorRef& ref : program.inputs) {
    work.arguments.push_back({.kind = ArgumentKind::kTensor, .tensors = {ref}});
  }
  // The kernel does not read this. It tells works apart that do different things.
  work.arguments.push_back({.constant = text_of(program)});
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    work.made.push_back({k, 0, program.outputs[k].value});
  }
  work.kernel = [program = std::make_shared<const RowProgram>(std::move(program))](
                    std::vector<c10::IValue>& stack) { run_rows(*program, stack); };
  return work;
}

}  // namespace reprise::runtime::internal::rewrite
