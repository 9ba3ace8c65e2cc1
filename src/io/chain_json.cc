// Reads and writes the format reprise.chain.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

StageOption read_option(const Element& element) {
  Object object(element);
  StageOption option;
  option.name = object.required("name").string();
  option.saved = object.required("saved_bytes").bytes();
  if (const auto flag = object.optional("reads_input")) option.reads_input = flag->boolean();
  if (const auto flag = object.optional("reads_output")) option.reads_output = flag->boolean();
  if (const auto flag = object.optional("consumes")) option.consumes = flag->boolean();
  if (const auto flag = object.optional("consumes_input")) option.consumes_input = flag->boolean();
  option.forward = read_cost(object.required("forward"));
  option.backward = read_cost(object.required("backward"));
  if (const auto cost = object.optional("stopped")) option.stopped = read_cost(*cost);
  if (const auto word = object.optional("exactness")) option.exactness = read_exactness(*word);
  object.finish();
  return option;
}

Stage read_stage(const Element& element) {
  Object object(element);
  Stage stage;
  stage.name = object.required("name").string();
  stage.output = object.required("output_bytes").bytes();
  if (const auto size = object.optional("output_gradient_bytes")) {
    stage.output_gradient = size->bytes();
  }
  if (const auto size = object.optional("weight_gradient_bytes")) {
    stage.weight_gradient = size->bytes();
  }
  if (const auto flag = object.optional("random")) stage.random = flag->boolean();
  stage.forward = read_cost(object.required("forward"));
  object.required("options").for_each(
      [&](const Element& option) { stage.options.push_back(read_option(option)); });
  object.finish();
  return stage;
}

void write_option(Writer& writer, const StageOption& option) {
  writer.open_object(Layout::kInline)
      .field("name", option.name)
      .field("saved_bytes", option.saved)
      .field("reads_input", option.reads_input)
      .field("reads_output", option.reads_output)
      .field("consumes", option.consumes)
      .field("consumes_input", option.consumes_input);
  write_cost(writer.key("forward"), option.forward);
  write_cost(writer.key("backward"), option.backward);
  if (option.stopped) write_cost(writer.key("stopped"), *option.stopped);
  writer.field("exactness", to_string(option.exactness)).close();
}

void write_stage(Writer& writer, const Stage& stage) {
  writer.open_object().field("name", stage.name).field("output_bytes", stage.output);
  if (stage.output_gradient) writer.field("output_gradient_bytes", *stage.output_gradient);
  writer.field("weight_gradient_bytes", stage.weight_gradient).field("random", stage.random);
  write_cost(writer.key("forward"), stage.forward);
  writer.key("options").open_array();
  for (const StageOption& option : stage.options) write_option(writer, option);
  writer.close().close();
}

}  // namespace

ChainInput read_input(const Element& element) {
  Object object(element);
  ChainInput input;
  input.bytes = object.required("bytes").bytes();
  if (const auto size = object.optional("gradient_bytes")) input.gradient = size->bytes();
  object.finish();
  return input;
}

ChainLoss read_loss(const Element& element) {
  Object object(element);
  ChainLoss loss;
  loss.cost.time = object.required("ns").nanos();
  if (const auto size = object.optional("workspace_bytes")) loss.cost.workspace = size->bytes();
  if (const auto flag = object.optional("consumes")) loss.consumes = flag->boolean();
  object.finish();
  return loss;
}

std::vector<Stage> read_stages(const Element& array) {
  std::vector<Stage> stages;
  array.for_each([&](const Element& stage) { stages.push_back(read_stage(stage)); });
  return stages;
}

void write_input(Writer& writer, const ChainInput& input) {
  writer.open_object(Layout::kInline)
      .field("bytes", input.bytes)
      .field("gradient_bytes", input.gradient)
      .close();
}

void write_stages(Writer& writer, const std::vector<Stage>& stages) {
  writer.open_array();
  for (const Stage& stage : stages) write_stage(writer, stage);
  writer.close();
}

void write_loss(Writer& writer, const ChainLoss& loss) {
  writer.open_object(Layout::kInline)
      .field("ns", loss.cost.time)
      .field("workspace_bytes", loss.cost.workspace)
      .field("consumes", loss.consumes)
      .close();
}

Chain read_chain(const Element& root) {
  Object object(root);
  read_header(object, kChainFormat);
  Chain chain;
  chain.name = object.required("name").string();
  if (const auto size = object.optional("fixed_bytes")) chain.fixed = size->bytes();
  chain.input = read_input(object.required("input"));
  chain.stages = read_stages(object.required("stages"));
  if (const auto loss = object.optional("loss")) chain.loss = read_loss(*loss);
  object.finish();
  validate_at(root, [&] { validate(chain); });
  return chain;
}

void write_chain(Writer& writer, const Chain& chain) {
  validate(chain);
  open_document(writer, kChainFormat);
  writer.field("name", chain.name).field("fixed_bytes", chain.fixed);
  write_input(writer.key("input"), chain.input);
  write_stages(writer.key("stages"), chain.stages);
  write_loss(writer.key("loss"), chain.loss);
  writer.close();
}

}  // namespace io

std::string to_json(const Chain& chain) {
  io::Writer writer;
  io::write_chain(writer, chain);
  return writer.take();
}

}  // namespace reprise
