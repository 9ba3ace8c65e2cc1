// This is the state of a planned model: the stages of its branches, and a plan for each kind of
// input that it was given. A chain has one branch.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/remat.h"
#include "reprise/runtime/shared_peak.h"
#include "runtime/chain/execute.h"
#include "runtime/chain/plan_key.h"
#include "runtime/device/turns.h"
#include "runtime/session/session.h"

namespace reprise::runtime::internal::chain {

struct ModelState : session::Session {
  // An Instance is the state for one kind of input.
  struct Instance {
    PlanKey key;
    std::shared_ptr<PlannedModel> planned;
    std::vector<TimeSpread> spread;
    int64_t processor_percent = 100;  // Profile::processor_percent
    std::vector<std::string> stays;   // MeasuredChain::stays
    Tensors example_shape;            // for describe(): geometry only
    int64_t offset = 0;  // live bytes beyond the chain's fixed + input when the plan was made
    PlanResult result;
    // The chain, and the peak of the plan, if the caller drops the output with the loss. They are there if
    // the plan is for a caller who holds it.
    std::optional<Chain> output_dropped;
    std::optional<Bytes> peak_if_dropped;
    // By branch: whether the problem of `result` has room for a second output.
    std::vector<bool> second_output;

    // Returns the problem that `result` answers.
    Problem problem() const;

    explicit Instance(PlanKey k) : key(std::move(k)) {}
  };

  // Forwards, backwards and plans of several threads take turns: while stages run, autograd does not
  // know the parameters as leaves, so no backward may add to their gradients meanwhile.
  device::Turns turns;
  std::vector<StageBranch> branches;
  std::vector<Stage> tail;
  RematOptions options;
  std::vector<std::unique_ptr<Instance>> instances;
  Instance* last = nullptr;
  StepReport report;
  StepReport reported() const {
    StepReport found = report;
    found.overheads = overheads.last();
    return found;
  }
  // A share of the budget is of the peak of the first plan that was asked for one.
  std::optional<SharedPeak> share_of;
  bool chosen = false;  // whether the memory was chosen for this budget

  // The inputs are those of each branch.
  ModelContents contents() const { return contents_of(branches, tail); }
  // Returns what the program will take outside of the step (RematOptions::foreseen).
  Bytes foreseen() const { return options.foreseen ? options.foreseen() : Bytes(0); }
  void check_inputs(const std::vector<Tensors>& inputs) const;
  bool has_sharded_parameters() const;
  bool has_ways() const;
  bool any_stage(const std::function<bool(const Stage&)>& matches) const;
  Instance& instance_for(const std::vector<Tensors>& inputs, const ModelContents& contents);
  void open_offload_memory(const at::Tensor& input);
  void drop_outdated();
  void find_ranks();
  // Plans for this rank, or with its ranks for all.
  PlanResult ask(const Problem& problem, const PlanOptions& planning) const;
  void make_plan(const std::string& why, Instance& instance, int64_t offset, Bytes inputs);
  PlanResult answer(Instance& instance, PlanOptions& planning);
  // Plans without a second memory and with one, and opens the memory that pays (transfer/choose.h).
  PlanResult choose_memory(Instance& instance, PlanOptions& planning);
  void use_memory(Instance& instance, transfer::OpenedMemory memory);
  void plan_second_outputs(Instance& instance, const PlanOptions& planning,
                           PlanResult& result) const;
  // Makes a plan if there is none, or if the level of memory has changed too much. Returns the
  // bytes that are live but not counted by the allocator.
  int64_t replan_if_needed(Instance& instance, const std::vector<Tensors>& inputs,
                           const ModelContents& contents);
  // Makes `last` the instance of these inputs, with a plan that fits. Returns the bytes that are
  // live but not counted by the allocator.
  int64_t ready(const std::vector<Tensors>& inputs, const ModelContents& contents);
  void set_budget(Budget budget);
  const Instance& planned() const;  // throws InputError when nothing was planned yet
  Tensors run_plain(std::vector<Tensors> inputs) const;
};

}  // namespace reprise::runtime::internal::chain

namespace reprise::runtime {

struct Remat::State : internal::chain::ModelState {};

}  // namespace reprise::runtime
