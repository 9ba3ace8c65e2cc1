// Saves all that a training run needs to go on, in one file, and loads it again. Training then goes
// on with the bits of a run that was never interrupted.
//
//   rt::StateParts parts{.model = model.ptr(), .optimizer = &optimizer};
//   rt::save_state("state.safetensors", parts, {.step = step});
//   ...
//   const rt::Progress done = rt::load_state("state.safetensors", parts);
//
// The file has the parameters and buffers of the model, the options and the state of the optimizer,
// the random states of the generators, and the progress. Its format is that of safetensors with a
// text of its own (docs/formats.md, reprise.state), and reprise.load_state() of Python reads it.
//
// Saving is atomic: the file is the old one or the new one, whole, however the process ends. While
// a step runs, nothing may be saved or loaded.
//
// These functions do not handle several processes (reprise.save_state() of Python does), the state
// of the program's own generators, and optimizers beside SGD, Adam, AdamW, Adagrad and RMSprop.
// save_state() throws InputError for an optimizer that is sharded over several processes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace reprise {
struct Plan;
}

namespace reprise::runtime {

// StateParts are the objects whose state is saved, or that a state is loaded into.
struct StateParts {
  // Parameters and buffers are saved under "model." and their names, each tensor once.
  std::shared_ptr<torch::nn::Module> model = {};
  // The optimizer's parameters have their names in the model. Others have numbers: "#3".
  torch::optim::Optimizer* optimizer = nullptr;
  // Further tensors of the program, by names. They are saved under "tensor." and the name.
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
};

// Progress is what the program itself says about the run.
struct Progress {
  int64_t step = 0;                               // number of steps that were done
  int64_t position = 0;                           // place in the data, as the program counts
  std::string plan = {};                          // plan_sha256() of the plan in force, or empty
  std::map<std::string, std::string> notes = {};  // texts of the program's own

  bool operator==(const Progress&) const = default;
};

// Returns the hash of a plan's file form.
std::string plan_sha256(const Plan& plan);

// Saves the parts, the progress, and the random states: that of the CPU's generator and those of
// the devices on which the model's parameters lie. Tensors on the CPU whose elements lie one after
// the other are written from where they are; others are copied into memory that is not counted.
//
// Throws InputError if the file cannot be written, for an optimizer of another class, and for
// tensors that such files cannot have (sparse, quantized, complex128).
void save_state(const std::filesystem::path& path, const StateParts& parts,
                const Progress& progress = {});

// Loads a state into the parts, in place, with the random states. A part that is not given stays as
// it is. A tensor of the optimizer that is not there yet is made.
//
// Everything is compared before anything is written. Throws InputError that says what differs:
// the names, shapes or types of the model's tensors, the class of the optimizer, its groups of
// parameters, the format's version, or bytes that are not those that were written.
Progress load_state(const std::filesystem::path& path, const StateParts& parts);

// Returns the progress that a file of a state has, and loads nothing.
Progress read_progress(const std::filesystem::path& path);

}  // namespace reprise::runtime
