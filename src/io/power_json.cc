// Reads and writes the format reprise.power.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

OpPower read_op_power(const Element& element) {
  Object object(element);
  OpPower row;
  row.op = object.required("op").string();
  if (const auto name = object.optional("variant")) row.variant = name->string();
  row.dynamic_mw = object.required("dynamic_mw").integer();
  object.finish();
  return row;
}

}  // namespace

Power read_power(const Element& root) {
  Object object(root);
  read_header(object, kPowerFormat);
  Power power;
  power.static_mw = object.required("static_mw").integer();
  power.dynamic_mw = object.required("dynamic_mw").integer();
  if (const auto energy = object.optional("copy_pj_per_byte")) {
    power.copy_pj_per_byte = energy->integer();
  }
  if (const auto rows = object.optional("ops")) {
    rows->for_each([&](const Element& row) { power.ops.push_back(read_op_power(row)); });
  }
  object.finish();
  validate_at(root, [&] { validate(power); });
  return power;
}

}  // namespace io

std::string to_json(const Power& power) {
  validate(power);
  io::Writer writer;
  io::open_document(writer, io::kPowerFormat);
  writer.field("static_mw", power.static_mw)
      .field("dynamic_mw", power.dynamic_mw)
      .field("copy_pj_per_byte", power.copy_pj_per_byte);
  writer.key("ops").open_array();
  for (const OpPower& row : power.ops) {
    writer.open_object(io::Layout::kInline).field("op", row.op);
    if (!row.variant.empty()) writer.field("variant", row.variant);
    writer.field("dynamic_mw", row.dynamic_mw).close();
  }
  writer.close().close();
  return writer.take();
}

Power parse_power(std::string_view text, const std::string& name) {
  const io::Document document(text, name);
  return io::read_power({document, 0});
}

Power load_power(const std::filesystem::path& path) {
  return parse_power(read_file(path), path.string());
}

}  // namespace reprise
