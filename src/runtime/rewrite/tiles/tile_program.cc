#include "runtime/rewrite/tiles/tile_program.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "runtime/device/parallel.h"
#include "runtime/rewrite/tiles/tile_trial.h"
#include "runtime/rewrite/words.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::rewrite {

using From = TileProgram::From;
using Operand = TileProgram::Operand;

namespace {

// A tile of so many elements and the buffers beside it fit the cache of a core, and the calls of
// its kernels take a small part of the time.
constexpr int64_t kTile = 1 << 16;
constexpr int64_t kLargestTile = 1 << 18;
// There are at least so many tiles, so that the buffers are small beside the values.
constexpr int64_t kLeastTiles = 8;

int64_t bytes_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

// Says of each call whether the outputs need it.
std::vector<bool> needed_calls(const TileSource& source) {
  std::vector<bool> needed(source.calls.size(), false);
  std::vector<int32_t> wanted = source.outputs;
  for (size_t c = source.calls.size(); c-- > 0;) {
    const ElementCall& call = source.calls[c];
    if (std::ranges::find(wanted, call.result.index) == wanted.end()) continue;
    needed[c] = true;
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kValue) wanted.push_back(ref.index);
      }
    }
  }
  return needed;
}

class Compiler {
 public:
  explicit Compiler(const TileSource& source) : source_(source) {
    const std::vector<bool> needed = needed_calls(source);
    for (size_t c = 0; c < source.calls.size(); ++c) {
      if (needed[c]) calls_.push_back(&source.calls[c]);
    }
    for (size_t c = 0; c < calls_.size(); ++c) {
      for (const Argument& argument : calls_[c]->arguments) {
        for (const TensorRef& ref : argument.tensors) {
          if (ref.memory == Memory::kValue) last_use_[ref.index] = c;
        }
      }
    }
  }

  TileProgram run() {
    program_.elements = calls_.front()->elements;
    int64_t unit = 1;
    for (const ElementCall* call : calls_) unit = std::lcm(unit, call->unit);
    program_.tile = tile_of(program_.elements, unit);
    for (size_t c = 0; c < calls_.size(); ++c) add(c);
    return std::move(program_);
  }

 private:
  void add(size_t c) {
    const ElementCall& call = *calls_[c];
    TileProgram::Step step{.op = *call.op,
                           .result_first = call.result_first,
                           .arguments = {},
                           .result = {},
                           .inner = call.inner,
                           .unit = call.unit};
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      step.arguments.push_back(operand(call, a));
    }
    step.result = place_of(call);
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kValue && last_use_[ref.index] == c) give_back(ref.index);
      }
    }
    program_.steps.push_back(std::move(step));
  }

  Operand operand(const ElementCall& call, size_t a) {
    const Argument& argument = call.arguments[a];
    Operand one{.dtype = call.type, .is_number = call.is_number(a)};
    if (argument.kind == ArgumentKind::kConstant) {
      one.constant = one.is_number
                         ? c10::IValue(number_for_tiles(argument.constant.toTensor(), call.type))
                         : argument.constant;
      one.is_number = false;
      return one;
    }
    const TensorRef& ref = argument.tensors[0];
    one.strides = call.strides[a];
    if (!one.is_number) one.dtype = ref.geometry.dtype;
    if (ref.memory == Memory::kValue && ref.index == source_.ones) {
      one.from = From::kOnes;
      program_.ones = one.dtype;
      program_.has_ones = true;
      return one;
    }
    const auto made = ref.memory == Memory::kValue ? made_.find(ref.index) : made_.end();
    if (made != made_.end()) {
      one.from = made->second.from;
      one.index = made->second.index;
      return one;
    }
    one.from = From::kInput;
    const TileProgram::Input input{
        ref, one.is_number ? std::optional(call.type) : std::optional<at::ScalarType>()};
    const auto found = std::ranges::find(program_.inputs, input);
    one.index = static_cast<size_t>(found - program_.inputs.begin());
    if (found == program_.inputs.end()) program_.inputs.push_back(input);
    return one;
  }

  // Returns where the call writes its result.
  Operand place_of(const ElementCall& call) {
    const int32_t value = call.result.index;
    const at::ScalarType dtype = call.result.geometry.dtype;
    Operand place{.dtype = dtype, .strides = dense_strides(call.inner)};
    if (std::ranges::find(source_.outputs, value) != source_.outputs.end()) {
      place.from = From::kOutput;
      // Outputs have the positions that the source gives them.
      place.index =
          static_cast<size_t>(std::ranges::find(source_.outputs, value) - source_.outputs.begin());
      program_.outputs.resize(source_.outputs.size());
      program_.outputs[place.index].dtype = dtype;
    } else {
      place.from = From::kScratch;
      place.index = take(bytes_of(dtype));
    }
    made_[value] = place;
    return place;
  }

  static std::vector<int64_t> dense_strides(const std::vector<int64_t>& inner) {
    std::vector<int64_t> strides(inner.size() + 1, 1);
    for (size_t d = inner.size(); d-- > 0;) strides[d] = strides[d + 1] * inner[d];
    return strides;
  }

  size_t take(int64_t bytes) {
    for (size_t k = 0; k < free_.size(); ++k) {
      const size_t buffer = free_[k];
      if (program_.scratch[buffer] != bytes) continue;
      free_.erase(free_.begin() + static_cast<int64_t>(k));
      return buffer;
    }
    program_.scratch.push_back(bytes);
    return program_.scratch.size() - 1;
  }

  void give_back(int32_t value) {
    const auto made = made_.find(value);
    if (made == made_.end() || made->second.from != From::kScratch) return;
    if (std::ranges::find(free_, made->second.index) == free_.end()) {
      free_.push_back(made->second.index);
    }
  }

  const TileSource& source_;
  std::vector<const ElementCall*> calls_;
  std::map<int32_t, size_t> last_use_;  // by value: the last call that reads it
  std::map<int32_t, Operand> made_;     // by value: where it lies
  std::vector<size_t> free_;
  TileProgram program_;
};

// Runs the tiles of one thread.
class TileRunner {
 public:
  TileRunner(const TileProgram& program, const std::vector<TileMemory>& inputs,
             const std::vector<TileMemory>& outputs, const c10::Storage& scratch, int64_t at_byte,
             const c10::Storage& ones)
      : program_(program) {
    std::vector<int64_t> offsets;
    for (const int64_t bytes : program.scratch) {
      offsets.push_back(at_byte / bytes);
      at_byte += bytes * program.tile;
    }
    const auto view = [&](const TileProgram::Step& step, const Operand& operand) -> c10::IValue {
      switch (operand.from) {
        case From::kConstant:
          return operand.constant;
        case From::kInput:
          if (operand.is_number) return inputs[operand.index].tensor;
          return moving(step, operand, inputs[operand.index]);
        case From::kOutput:
          return moving(step, operand, outputs[operand.index]);
        case From::kScratch:
          return resting(step, operand, scratch, offsets[operand.index]);
        case From::kOnes:
          return resting(step, operand, ones, 0);
      }
      return {};
    };
    for (const TileProgram::Step& step : program.steps) {
      std::vector<c10::IValue>& stack = stacks_.emplace_back();
      if (step.result_first) stack.push_back(view(step, step.result));
      for (const Operand& operand : step.arguments) stack.push_back(view(step, operand));
      if (!step.result_first) stack.push_back(view(step, step.result));
    }
  }

  void run(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += program_.tile) {
      const int64_t length = std::min(program_.tile, end - first);
      for (const View& one : views_) {
        const int64_t behind = one.rests ? 0 : (first - one.origin) / one.unit * one.stride;
        one.impl->set_storage_offset(one.offset + behind);
        if (length == length_) continue;
        sizes_.assign(1, length / one.unit);
        sizes_.insert(sizes_.end(), one.inner->begin(), one.inner->end());
        one.impl->set_sizes_and_strides(sizes_, *one.strides, one.impl->storage_offset());
      }
      length_ = length;
      for (size_t s = 0; s < stacks_.size(); ++s) {
        stack_ = stacks_[s];
        program_.steps[s].op.callBoxed(stack_);
      }
    }
    stack_.clear();
  }

 private:
  struct View {
    c10::TensorImpl* impl;
    int64_t offset, stride, unit, origin;
    bool rests;  // a buffer of the size of a tile
    const std::vector<int64_t>*inner, *strides;
  };

  at::Tensor add_view(const TileProgram::Step& step, const Operand& operand,
                      const c10::Storage& storage, int64_t offset, int64_t origin, bool rests) {
    Geometry geometry{
        .sizes = {0}, .strides = operand.strides, .offset = offset, .dtype = operand.dtype};
    geometry.sizes.insert(geometry.sizes.end(), step.inner.begin(), step.inner.end());
    at::Tensor tensor = step::tensor_on(storage, geometry);
    views_.push_back({tensor.unsafeGetTensorImpl(), offset, operand.strides[0], step.unit, origin,
                      rests, &step.inner, &operand.strides});
    return tensor;
  }
  at::Tensor moving(const TileProgram::Step& step, const Operand& operand,
                    const TileMemory& memory) {
    return add_view(step, operand, memory.tensor.storage(), memory.tensor.storage_offset(),
                    memory.origin, /*rests=*/false);
  }
  at::Tensor resting(const TileProgram::Step& step, const Operand& operand,
                     const c10::Storage& storage, int64_t offset) {
    return add_view(step, operand, storage, offset, /*origin=*/0, /*rests=*/true);
  }

  const TileProgram& program_;
  std::vector<std::vector<c10::IValue>> stacks_;  // by step: its arguments
  std::vector<View> views_;                       // of the tensors on the stacks
  std::vector<c10::IValue> stack_;
  std::vector<int64_t> sizes_;
  int64_t length_ = -1;
};

std::vector<TileMemory> outputs_for(const TileProgram& program,
                                    const std::vector<TileMemory>& inputs) {
  std::vector<TileMemory> outputs;
  for (const TileProgram::Output& output : program.outputs) {
    if (output.over >= 0) {
      outputs.push_back(inputs[output.over]);
    } else {
      outputs.push_back({at::empty({program.elements}, at::TensorOptions(output.dtype))});
    }
  }
  return outputs;
}

void run_program(const TileProgram& program, std::vector<c10::IValue>& stack) {
  std::vector<TileMemory> inputs;
  for (size_t k = 0; k < program.inputs.size(); ++k) inputs.push_back({stack[k].toTensor()});
  stack.clear();
  const std::vector<TileMemory> outputs = outputs_for(program, inputs);
  run_tiles(program, std::move(inputs), outputs, 0, program.elements);
  for (const TileMemory& output : outputs) stack.emplace_back(output.tensor);
}

}  // namespace

int64_t tile_of(int64_t elements, int64_t unit) {
  const int64_t least = std::lcm(unit, kTileAlignment);
  if (elements % unit != 0 || (unit > 1 && least > std::min(kLargestTile, elements))) return 0;
  // A thread begins where ATen's would, and that must be the begin of a unit.
  const int64_t threads = std::min<int64_t>(
      at::get_num_threads(), (elements + at::internal::GRAIN_SIZE - 1) / at::internal::GRAIN_SIZE);
  if (threads > 1 && (elements + threads - 1) / threads % unit != 0) return 0;
  const int64_t wanted = std::min(kTile, elements / kLeastTiles);
  return std::max(least, wanted / least * least);
}

TileProgram compile(const TileSource& source) { return Compiler(source).run(); }

void run_tiles(const TileProgram& program, std::vector<TileMemory> inputs,
               const std::vector<TileMemory>& outputs, int64_t begin, int64_t end) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    const std::optional<at::ScalarType>& number = program.inputs[k].number;
    if (number) inputs[k].tensor = number_for_tiles(inputs[k].tensor, *number);
  }
  const int64_t bytes =
      std::accumulate(program.scratch.begin(), program.scratch.end(), int64_t{0}) * program.tile;
  const bool parallel = end - begin >= at::internal::GRAIN_SIZE && at::get_num_threads() > 1 &&
                        !at::in_parallel_region();
  const int64_t threads = parallel ? at::get_num_threads() : 1;
  const auto byte = at::TensorOptions(at::kByte);
  const at::Tensor scratch = at::empty({bytes * threads}, byte);
  at::Tensor ones = at::empty({0}, byte);
  if (program.has_ones) {
    ones = at::empty({program.tile}, at::TensorOptions(program.ones)).fill_(1);
  }
  const auto run = [&](int64_t first, int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const int64_t thread = parallel ? at::get_thread_num() : 0;
    TileRunner runner(program, inputs, outputs, scratch.storage(), thread * bytes, ones.storage());
    runner.run(first, last);
  };
  if (!parallel) {
    run(begin, end);
  } else if (begin == 0 && end == program.elements) {
    device::parallel_ranges(end, at::internal::GRAIN_SIZE, run);
  } else {
    const int64_t tiles = (end - begin + program.tile - 1) / program.tile;
    device::parallel_ranges(tiles, /*grain=*/1, [&](int64_t first, int64_t last) {
      run(begin + first * program.tile, std::min(end, begin + last * program.tile));
    });
  }
}

bool write_over(TileProgram& program, size_t output, size_t input) {
  bool written = false;
  for (const TileProgram::Step& step : program.steps) {
    bool reads = false;
    for (const Operand& operand : step.arguments) {
      if (operand.from != From::kInput || operand.index != input) continue;
      reads = true;
      // The operand must be read in the order in which the result is written.
      const Operand& result = step.result;
      if (operand.is_number || operand.strides != result.strides) return false;
    }
    if (reads && written) return false;
    const bool writes = step.result.from == From::kOutput && step.result.index == output;
    written = written || writes;
  }
  program.outputs[output].over = static_cast<int64_t>(input);
  return true;
}

std::string signature_of(const TileProgram& program) {
  std::ostringstream text;
  const auto write = [&](const Operand& operand) {
    text << ' ' << static_cast<int>(operand.from) << '.' << operand.index
         << (operand.is_number ? "n" : "");
    if (operand.from == From::kConstant) text << operand.constant;
    text << fmt::format("[{}]", fmt::join(operand.strides, ","));
  };
  for (const TileProgram::Step& step : program.steps) {
    text << step.op.operator_name();
    for (const Operand& operand : step.arguments) write(operand);
    write(step.result);
    text << ';';
  }
  for (const TileProgram::Output& output : program.outputs) text << output.over << ',';
  text << program.tile;
  return text.str();
}

std::string operators_of(const TileProgram& program) {
  std::vector<std::pair<std::string, int>> names;
  for (const TileProgram::Step& step : program.steps) {
    const std::string& full = step.op.operator_name().name;
    const std::string name = full.substr(full.rfind(':') + 1);
    const auto known = std::ranges::find(names, name, &std::pair<std::string, int>::first);
    if (known == names.end()) {
      names.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [name, count] : names) {
    if (!text.empty()) text += '+';
    text += count > 1 ? fmt::format("{}*{}", name, count) : name;
  }
  return text;
}

Kernel kernel_of(TileProgram program) {
  return [program = std::make_shared<const TileProgram>(std::move(program))](
             std::vector<c10::IValue>& stack) { run_program(*program, stack); };
}

}  // namespace reprise::runtime::internal::rewrite
