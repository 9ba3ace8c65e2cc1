#include "runtime/graph/cost_cache.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <filesystem>
#include <stdexcept>
#include <utility>

#include "reprise/io/json.h"
#include "reprise/model/profile.h"
#include "runtime/device/processor_name.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using device::processor_name;
using step::kind_of;

namespace {

constexpr const char* kFormat = "reprise-costs 2";
constexpr const char* kSuffix = ".reprise-costs";

// Returns the settings of this machine and of LibTorch that times and workspaces depend on.
std::string circumstances() {
  const at::Context& context = at::globalContext();
  return fmt::format(
      "reprise {}\ntorch {}\nprocessor {}\ncapability {}\nthreads {}\nonednn {}\nnnpack {}\n"
      "deterministic {}\ncudnn {} {}\nprecision {}\n{}",
      REPRISE_VERSION, TORCH_VERSION, processor_name(), at::get_cpu_capability(),
      at::get_num_threads(), context.userEnabledMkldnn(), context.userEnabledNNPACK(),
      context.deterministicAlgorithms(), context.deterministicCuDNN(), context.benchmarkCuDNN(),
      static_cast<int>(context.float32MatmulPrecision()), at::get_mkldnn_version());
}

std::string key_of(const CostCache::Question& question, const CaptureOptions& options) {
  const RewrittenStep& step = question.step;
  std::string text = circumstances();
  const MeasureOptions& measure = options.measure;
  text += fmt::format("\ndevice {}\nmeasure {} {} {}\noptimizer {}\n", step.recording.device.str(),
                      measure.min_repeats, measure.max_repeats, measure.min_time.count(),
                      options.optimizer ? options.optimizer->name() : "");
  for (const at::Tensor& input : question.sample) text += shape_text(input) + '\n';
  for (const Work& work : step.works.all) text += kind_of(work) + '\n';
  text += to_json(question.unmeasured.graph);
  return text_sha256(text);
}

Graph without_costs(Graph graph) {
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) {
      variant.time = Nanos();
      variant.workspace = Bytes();
      variant.error_ppm = 0;
    }
  }
  return graph;
}

}  // namespace

CostCache::CostCache(const CaptureOptions& options, const std::function<Question()>& ask) {
  if (options.cache.empty()) return;
  const Question question = ask();
  key_ = key_of(question, options);
  path_ = (std::filesystem::path(options.cache) / (key_ + kSuffix)).string();
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) return;
  try {
    load(question);
  } catch (const std::exception& problem) {
    reject(problem.what());
  }
}

void CostCache::load(const Question& question) {
  const LoweredStep& unmeasured = question.unmeasured;
  const std::string text = read_file(path_);
  const size_t line = text.find('\n');
  if (line == std::string::npos) throw std::runtime_error("it is cut off");
  const std::string body = text.substr(line + 1);
  const std::string head = text.substr(0, line);
  if (!head.starts_with(kFormat)) throw std::runtime_error("it is of another format");
  if (head != fmt::format("{} {} {}", kFormat, key_, text_sha256(body))) {
    throw std::runtime_error("it is damaged, or it is another entry");
  }
  const Profile profile = parse_profile(body);
  const Graph* graph = std::get_if<Graph>(&profile.problem);
  if (graph == nullptr || without_costs(*graph) != unmeasured.graph) {
    throw std::runtime_error("it is of another step");
  }
  costs_.by_work.resize(question.step.works.all.size());
  for (size_t op = 0; op < graph->ops.size(); ++op) {
    for (size_t k = 0; k < graph->ops[op].variants.size(); ++k) {
      const Variant& variant = graph->ops[op].variants[k];
      costs_.by_work[unmeasured.works[op][k]] = {variant.time, variant.workspace,
                                                 variant.error_ppm};
    }
  }
  costs_.spread = profile.spread;
  costs_.processor_percent = profile.processor_percent;
  graph_ = *graph;
  found_ = true;
}

void CostCache::compare(const LoweredStep& lowered) {
  if (lowered.graph != graph_) reject("it is of another step");
}

void CostCache::reject(const std::string& reason) {
  found_ = false;
  graph_ = {};
  costs_ = {};
  warning_ =
      fmt::format("the entry {} of the cache is not used, and will be replaced: {}", path_, reason);
  for (char& c : warning_) {
    if (c == '\n') c = ' ';
  }
}

void CostCache::store(const LoweredStep& measured, const WorkCosts& costs) {
  if (path_.empty()) return;
  try {
    Profile profile;
    profile.problem = measured.graph;
    profile.versions = {{"reprise", REPRISE_VERSION}, {"torch", TORCH_VERSION}};
    profile.threads = at::get_num_threads();
    profile.signature = key_;
    profile.spread = costs.spread;
    profile.processor_percent = costs.processor_percent;
    const std::string body = to_json(profile);
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    write_file(path_, fmt::format("{} {} {}\n{}", kFormat, key_, text_sha256(body), body));
  } catch (const std::exception& problem) {
    warning_ = fmt::format("the measured costs could not be kept in the cache: {}", problem.what());
  }
}

}  // namespace reprise::runtime::internal::graph
