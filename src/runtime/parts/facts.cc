#include "runtime/parts/facts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "reprise/io/json.h"

namespace reprise::runtime::internal::parts {
namespace {

void put(std::string& all, const std::string& text) {
  all += fmt::format("{} {}", text.size(), text);
}

// A Reader takes the texts of put() apart.
class Reader {
 public:
  explicit Reader(const std::string& all) : all_(all) {}
  std::string next() {
    const size_t space = all_.find(' ', at_);
    const size_t length = std::stoul(all_.substr(at_, space - at_));
    std::string text = all_.substr(space + 1, length);
    at_ = space + 1 + length;
    return text;
  }
  int64_t number() { return std::stoll(next()); }

 private:
  const std::string& all_;
  size_t at_ = 0;
};

}  // namespace

PartFacts facts_of(const chain::PipelinePart& part) {
  PartFacts facts;
  facts.alone = pipeline_of_equal_devices(part.chain(), 1, 1, {});
  facts.output_gradient = part.output_gradient_bytes();
  for (size_t i = 0; i < part.splits().size(); ++i) {
    const chain::MeasuredSplit& split = part.splits()[i];
    facts.alone.stages.push_back({.fixed = Bytes(0),
                                  .weight_part = split.part,
                                  .output_in_workspace = split.output_in_workspace});
    if (split.why_not.empty()) continue;
    facts.not_split.push_back(
        fmt::format("stage '{}': {}", part.chain().stages[i].name, split.why_not));
  }
  return facts;
}

RankFacts facts_of(Bytes level, const Budget& budget) {
  if (budget.unlimited()) return {level, false, -1};
  return {level, budget.relative(), budget.resolve(kShareOf).count()};
}

std::string to_text(const std::vector<PartFacts>& parts) {
  std::string all;
  put(all, std::to_string(parts.size()));
  for (const PartFacts& part : parts) {
    put(all, to_json(part.alone));
    put(all, std::to_string(part.output_gradient.count()));
    put(all, std::to_string(part.not_split.size()));
    for (const std::string& reason : part.not_split) put(all, reason);
  }
  return all;
}

std::vector<PartFacts> parse_parts(const std::string& text) {
  Reader reader(text);
  std::vector<PartFacts> parts(static_cast<size_t>(reader.number()));
  for (PartFacts& part : parts) {
    part.alone = parse_pipeline(reader.next(), "a part of another rank");
    part.output_gradient = Bytes(reader.number());
    part.not_split.resize(static_cast<size_t>(reader.number()));
    for (std::string& reason : part.not_split) reason = reader.next();
  }
  return parts;
}

std::string to_text(const RankFacts& rank) {
  return fmt::format("{} {} {}", rank.level.count(), static_cast<int>(rank.share), rank.budget);
}

RankFacts parse_rank(const std::string& text) {
  std::istringstream in(text);
  int64_t level = 0;
  RankFacts rank{};
  in >> level >> rank.share >> rank.budget;
  rank.level = Bytes(level);
  return rank;
}

std::string boundary_text(const Tensors& outputs) {
  std::string text;
  for (const at::Tensor& output : outputs) {
    text += fmt::format("{} {} {} {}\n", static_cast<int>(output.scalar_type()),
                        static_cast<int>(output.requires_grad()), output.dim(),
                        fmt::join(output.sizes(), " "));
  }
  return text;
}

Tensors sample_of(const std::string& boundary) {
  at::Generator generator = at::detail::createCPUGenerator(0);
  std::istringstream in(boundary);
  Tensors sample;
  int type = 0, wanted = 0, dimensions = 0;
  while (in >> type >> wanted >> dimensions) {
    std::vector<int64_t> sizes(static_cast<size_t>(dimensions));
    for (int64_t& size : sizes) in >> size;
    const auto own = static_cast<at::ScalarType>(type);
    sample.push_back(at::isFloatingType(own) ? at::randn(sizes, generator).to(own)
                                             : at::zeros(sizes, own));
    if (wanted != 0) sample.back().set_requires_grad(true);
  }
  return sample;
}

}  // namespace reprise::runtime::internal::parts
