// Reads and writes the format reprise.pipeline.
#include <string_view>
#include <unordered_map>

#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

WeightPart read_weight_part(const Element& element) {
  Object object(element);
  WeightPart part;
  part.cost.time = object.required("ns").nanos();
  if (const auto size = object.optional("workspace_bytes")) part.cost.workspace = size->bytes();
  part.kept = object.required("kept_bytes").bytes();
  if (const auto flag = object.optional("consumes_kept")) part.consumes = flag->boolean();
  if (const auto flag = object.optional("reads_input")) part.reads_input = flag->boolean();
  if (const auto rest = object.optional("input_gradient")) part.rest = read_cost(*rest);
  if (const auto options = object.optional("options")) {
    options->for_each([&](const Element& name) { part.options.push_back(name.string()); });
    if (part.options.empty()) options->fail("names no option; leave the key out for all of them");
  }
  object.finish();
  return part;
}

PipelineStage read_pipeline_stage(const Element& element) {
  Object object(element);
  PipelineStage stage;
  if (const auto size = object.optional("fixed_bytes")) stage.fixed = size->bytes();
  if (const auto part = object.optional("weight_part")) stage.weight_part = read_weight_part(*part);
  if (const auto size = object.optional("output_in_workspace_bytes")) {
    stage.output_in_workspace = size->bytes();
  }
  object.finish();
  return stage;
}

PipelineDevice read_device(const Element& element) {
  Object object(element);
  PipelineDevice device;
  device.name = object.required("name").string();
  if (const auto size = object.optional("bytes")) device.memory = size->bytes();
  if (const auto percent = object.optional("time_percent"))
    device.time_percent = percent->integer();
  object.finish();
  return device;
}

int32_t read_link_end(const Element& element,
                      const std::unordered_map<std::string_view, int32_t>& devices) {
  const auto found = devices.find(element.text());
  if (found == devices.end())
    element.fail("the pipeline has no device " + io::quoted(element.text()));
  return found->second;
}

Link read_link(const Element& element,
               const std::unordered_map<std::string_view, int32_t>& devices) {
  Object object(element);
  Link link;
  link.from = read_link_end(object.required("from"), devices);
  link.to = read_link_end(object.required("to"), devices);
  link.bytes_per_second = object.required("bytes_per_second").integer();
  if (const auto latency = object.optional("latency_ns")) link.latency = latency->nanos();
  object.finish();
  return link;
}

void write_weight_part(Writer& writer, const WeightPart& part) {
  writer.open_object(Layout::kInline)
      .field("ns", part.cost.time)
      .field("workspace_bytes", part.cost.workspace)
      .field("kept_bytes", part.kept);
  if (part.consumes) writer.field("consumes_kept", true);
  if (part.reads_input) writer.field("reads_input", true);
  if (part.rest) write_cost(writer.key("input_gradient"), *part.rest);
  if (!part.options.empty()) {
    writer.key("options").open_array(Layout::kInline);
    for (const std::string& name : part.options) writer.value(name);
    writer.close();
  }
  writer.close();
}

void write_pipeline_stage(Writer& writer, const PipelineStage& stage) {
  writer.open_object(Layout::kInline).field("fixed_bytes", stage.fixed);
  if (stage.weight_part) {
    write_weight_part(writer.key("weight_part"), *stage.weight_part);
  }
  if (stage.output_in_workspace > Bytes(0)) {
    writer.field("output_in_workspace_bytes", stage.output_in_workspace);
  }
  writer.close();
}

}  // namespace

void write_pipeline(Writer& writer, const Pipeline& pipeline) {
  validate(pipeline);
  open_document(writer, kPipelineFormat);
  writer.field("name", pipeline.name).field("micro_batches", pipeline.micro_batches);
  write_chain(writer.key("chain"), pipeline.chain);
  if (!pipeline.stages.empty()) {
    writer.key("stages").open_array();
    for (const PipelineStage& stage : pipeline.stages) write_pipeline_stage(writer, stage);
    writer.close();
  }
  writer.key("devices").open_array();
  for (const PipelineDevice& device : pipeline.devices) {
    writer.open_object(Layout::kInline).field("name", device.name);
    if (device.memory) writer.field("bytes", *device.memory);
    writer.field("time_percent", device.time_percent).close();
  }
  writer.close().key("links").open_array();
  for (const Link& link : pipeline.links) {
    writer.open_object(Layout::kInline)
        .field("from", pipeline.devices[link.from].name)
        .field("to", pipeline.devices[link.to].name)
        .field("bytes_per_second", link.bytes_per_second)
        .field("latency_ns", link.latency)
        .close();
  }
  writer.close().close();
}

Pipeline read_pipeline(const Element& root) {
  Object object(root);
  read_header(object, kPipelineFormat);
  Pipeline pipeline;
  pipeline.name = object.required("name").string();
  pipeline.micro_batches = object.required("micro_batches").integer();
  pipeline.chain = read_chain(object.required("chain"));
  if (const auto stages = object.optional("stages")) {
    stages->for_each(
        [&](const Element& stage) { pipeline.stages.push_back(read_pipeline_stage(stage)); });
    if (pipeline.stages.empty()) stages->fail("has no entry; leave the key out");
  }
  object.required("devices").for_each([&](const Element& device) {
    if (pipeline.devices.size() >= kMostDevices) device.fail("there are too many devices");
    pipeline.devices.push_back(read_device(device));
  });
  // Links name devices. Two devices with one name are found below, and refused.
  std::unordered_map<std::string_view, int32_t> names;
  for (size_t d = 0; d < pipeline.devices.size(); ++d) {
    names.emplace(pipeline.devices[d].name, static_cast<int32_t>(d));
  }
  if (const auto links = object.optional("links")) {
    links->for_each([&](const Element& link) { pipeline.links.push_back(read_link(link, names)); });
  }
  object.finish();
  validate_at(root, [&] { validate(pipeline); });
  return pipeline;
}

}  // namespace io

std::string to_json(const Pipeline& pipeline) {
  io::Writer writer;
  io::write_pipeline(writer, pipeline);
  return writer.take();
}

Pipeline parse_pipeline(std::string_view text, const std::string& name) {
  const io::Document document(text, name);
  return io::read_pipeline({document, 0});
}

Pipeline load_pipeline(const std::filesystem::path& path) {
  return parse_pipeline(read_file(path), path.string());
}

}  // namespace reprise
