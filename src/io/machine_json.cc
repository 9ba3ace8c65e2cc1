// Reads and writes the format reprise.machine. Version 2 adds the key "computes" of memories beyond
// the first. A machine with one device is written as version 1, so that older programs read it and
// its hash stays what it was.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

Memory read_memory(const Element& element, int64_t version) {
  Object object(element);
  Memory memory;
  memory.name = object.required("name").string();
  if (const auto size = object.optional("bytes")) memory.capacity = size->bytes();
  if (version >= 2) {
    if (const auto flag = object.optional("computes")) memory.computes = flag->boolean();
  }
  object.finish();
  return memory;
}

int32_t read_end(const Element& element, const Machine& machine) {
  const std::string_view name = element.text();
  const int32_t found = name.empty() ? -1 : find_memory(machine, name);
  if (found < 0) element.fail("the machine has no memory " + quoted(name));
  return found;
}

Channel read_channel(const Element& element, const Machine& machine) {
  Object object(element);
  Channel channel;
  channel.from = read_end(object.required("from"), machine);
  channel.to = read_end(object.required("to"), machine);
  channel.bytes_per_second = object.required("bytes_per_second").integer();
  if (const auto latency = object.optional("latency_ns")) channel.latency = latency->nanos();
  if (const auto other = object.optional("shares")) {
    const int64_t position = other->integer();
    if (position >= static_cast<int64_t>(machine.channels.size())) {
      other->fail("must be the position of an earlier channel");
    }
    channel.shares = static_cast<int32_t>(position);
  }
  object.finish();
  return channel;
}

}  // namespace

Machine read_machine(const Element& root) {
  Object object(root);
  const int64_t version = read_header(object, kMachineFormat, kMachineVersion);
  Machine machine;
  machine.memories.clear();
  object.required("memories").for_each([&](const Element& memory) {
    machine.memories.push_back(read_memory(memory, version));
  });
  // Channels name memories, so that these must be right before.
  validate_at(root, [&] { validate(machine); });
  object.required("channels").for_each([&](const Element& channel) {
    if (machine.channels.size() >= kMostMemories * kMostMemories) {
      channel.fail("there are more channels than pairs of memories");
    }
    machine.channels.push_back(read_channel(channel, machine));
  });
  object.finish();
  validate_at(root, [&] { validate(machine); });
  return machine;
}

void write_machine(Writer& writer, const Machine& machine) {
  validate(machine);
  open_document(writer, kMachineFormat, has_devices(machine) ? kMachineVersion : kFormatVersion);
  writer.key("memories").open_array();
  for (size_t m = 0; m < machine.memories.size(); ++m) {
    const Memory& memory = machine.memories[m];
    writer.open_object(Layout::kInline).field("name", memory.name);
    if (memory.capacity) writer.field("bytes", *memory.capacity);
    // The first memory computes in every version.
    if (m > 0 && memory.computes) writer.field("computes", true);
    writer.close();
  }
  writer.close().key("channels").open_array();
  for (const Channel& channel : machine.channels) {
    writer.open_object(Layout::kInline)
        .field("from", machine.memories[channel.from].name)
        .field("to", machine.memories[channel.to].name)
        .field("bytes_per_second", channel.bytes_per_second)
        .field("latency_ns", channel.latency);
    if (channel.shares >= 0) writer.field("shares", int64_t{channel.shares});
    writer.close();
  }
  writer.close().close();
}

}  // namespace io

std::string to_json(const Machine& machine) {
  io::Writer writer;
  io::write_machine(writer, machine);
  return writer.take();
}

Machine parse_machine(std::string_view text, const std::string& name) {
  const io::Document document(text, name);
  return io::read_machine({document, 0});
}

Machine load_machine(const std::filesystem::path& path) {
  return parse_machine(read_file(path), path.string());
}

}  // namespace reprise
