// Reads and writes the format reprise.profile. Version 2 adds the share of the processor on a busy
// machine. A profile of a quiet machine is still written as version 1, so that older programs read
// it.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

TimeSpread read_spread(const Element& element) {
  Object object(element);
  TimeSpread spread;
  spread.op = object.required("op").string();
  spread.variant = object.required("variant").string();
  spread.repeats = object.required("repeats").integer();
  spread.min = object.required("min_ns").nanos();
  spread.median = object.required("median_ns").nanos();
  spread.max = object.required("max_ns").nanos();
  object.finish();
  return spread;
}

int64_t read_percent(const Element& element) {
  const int64_t percent = element.integer();
  if (percent > 100) element.fail("must be an integer from 0 to 100");
  return percent;
}

std::map<std::string, std::string> read_versions(const Element& element) {
  const Object object(element);
  std::map<std::string, std::string> versions;
  for (const auto& [key, index] : object.members()) {
    if (is_extension_key(key)) continue;
    versions.emplace(key, Element(element.document(), index).string());
  }
  return versions;
}

void write_spread(Writer& writer, const TimeSpread& spread) {
  writer.open_object(Layout::kInline)
      .field("op", spread.op)
      .field("variant", spread.variant)
      .field("repeats", spread.repeats)
      .field("min_ns", spread.min)
      .field("median_ns", spread.median)
      .field("max_ns", spread.max)
      .close();
}

}  // namespace

std::variant<Chain, Graph> read_model(const Element& root) {
  if (read_format(root) == kGraphFormat) return read_graph(root);
  return read_chain(root);
}

Profile read_profile(const Element& root) {
  Object object(root);
  const int64_t version = read_header(object, kProfileFormat, kProfileVersion);
  Profile profile;
  profile.problem = read_model(object.required("problem"));
  profile.device = object.required("device").string();
  profile.versions = read_versions(object.required("versions"));
  profile.threads = object.required("threads").integer();
  object.required("inputs").for_each(
      [&](const Element& input) { profile.inputs.push_back(input.string()); });
  profile.signature = object.required("signature").string();
  object.required("spread").for_each(
      [&](const Element& spread) { profile.spread.push_back(read_spread(spread)); });
  if (version >= 2) {
    if (const auto share = object.optional("processor_percent")) {
      profile.processor_percent = read_percent(*share);
    }
  }
  object.finish();
  return profile;
}

}  // namespace io

std::string to_json(const Profile& profile) {
  io::Writer writer;
  const bool busy = profile.processor_percent < 100;
  io::open_document(writer, io::kProfileFormat, busy ? io::kProfileVersion : io::kFormatVersion);
  writer.key("problem");
  if (const Chain* chain = std::get_if<Chain>(&profile.problem)) {
    io::write_chain(writer, *chain);
  } else {
    io::write_graph(writer, std::get<Graph>(profile.problem));
  }
  writer.field("device", profile.device).key("versions").open_object();
  for (const auto& [name, version] : profile.versions) {
    if (!io::is_extension_key(name)) writer.field(name, version);
  }
  writer.close().field("threads", profile.threads).key("inputs").open_array();
  for (const std::string& input : profile.inputs) writer.value(input);
  writer.close().field("signature", profile.signature).key("spread").open_array();
  for (const TimeSpread& spread : profile.spread) io::write_spread(writer, spread);
  writer.close();
  if (busy) writer.field("processor_percent", profile.processor_percent);
  writer.close();
  return writer.take();
}

}  // namespace reprise
