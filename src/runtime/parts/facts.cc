#include "runtime/parts/facts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

#include "reprise/io/json.h"
#include "runtime/distributed/wire.h"

namespace reprise::runtime::internal::parts {

using distributed::Packed;
using distributed::Unpacked;

PartFacts facts_of(const chain::PipelinePart& part, int32_t number) {
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
        fmt::format("stage '{}.{}': {}", number, part.chain().stages[i].name, split.why_not));
  }
  return facts;
}

RankFacts facts_of(Bytes level, const Budget& budget) {
  if (budget.unlimited()) return {level, false, -1};
  return {level, budget.relative(), budget.resolve(kShareOf).count()};
}

std::string to_text(const std::vector<PartFacts>& parts) {
  Packed all;
  for (const PartFacts& part : parts) {
    all.add(to_json(part.alone)).add(part.output_gradient.count());
    all.add(static_cast<int64_t>(part.not_split.size()));
    for (const std::string& reason : part.not_split) all.add(reason);
  }
  return all.take();
}

std::vector<PartFacts> parse_parts(const std::string& text) {
  std::vector<PartFacts> parts;
  for (Unpacked rest(text); !rest.done();) {
    PartFacts& part = parts.emplace_back();
    part.alone = parse_pipeline(rest.text(), "a part of another rank");
    part.output_gradient = Bytes(rest.number());
    const int64_t reasons = rest.number();
    for (int64_t r = 0; r < reasons; ++r) part.not_split.push_back(rest.text());
  }
  return parts;
}

std::string to_text(const RankFacts& rank) {
  return Packed().add(rank.level.count()).add(rank.share ? 1 : 0).add(rank.budget).take();
}

RankFacts parse_rank(const std::string& text) {
  Unpacked rest(text);
  const Bytes level(rest.number());
  const bool share = rest.number() != 0;
  return {.level = level, .share = share, .budget = rest.number()};
}

std::string boundary_text(const Tensors& outputs, const std::string& structure) {
  Packed all;
  all.add(structure);
  for (const at::Tensor& output : outputs) {
    all.add(static_cast<int64_t>(output.scalar_type())).add(output.requires_grad() ? 1 : 0);
    all.add(output.dim());
    for (const int64_t size : output.sizes()) all.add(size);
  }
  return all.take();
}

Boundary parse_boundary(const std::string& text) {
  at::Generator generator = at::detail::createCPUGenerator(0);
  Unpacked rest(text);
  Boundary boundary{.structure = rest.text()};
  while (!rest.done()) {
    const auto type = static_cast<at::ScalarType>(rest.number());
    const bool wanted = rest.number() != 0;
    std::vector<int64_t> sizes(static_cast<size_t>(rest.number()));
    for (int64_t& size : sizes) size = rest.number();
    boundary.sample.push_back(at::isFloatingType(type) ? at::randn(sizes, generator).to(type)
                                                       : at::zeros(sizes, type));
    if (wanted) boundary.sample.back().set_requires_grad(true);
  }
  return boundary;
}

}  // namespace reprise::runtime::internal::parts
