// The format reprise.join.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

Branch read_branch(const Element& element) {
  Object object(element);
  Branch branch;
  branch.name = object.required("name").string();
  branch.input = read_input(object.required("input"));
  branch.stages = read_stages(object.required("stages"));
  object.finish();
  return branch;
}

void write_join(Writer& writer, const Join& join) {
  validate(join);
  open_document(writer, kJoinFormat);
  writer.field("name", join.name).field("fixed_bytes", join.fixed);
  writer.key("branches").open_array();
  for (const Branch& branch : join.branches) {
    writer.open_object().field("name", branch.name);
    write_input(writer.key("input"), branch.input);
    write_stages(writer.key("stages"), branch.stages);
    writer.close();
  }
  writer.close();
  write_loss(writer.key("loss"), join.loss);
  writer.close();
}

}  // namespace

Join read_join(const Element& root) {
  Object object(root);
  read_header(object, kJoinFormat);
  Join join;
  join.name = object.required("name").string();
  if (const auto size = object.optional("fixed_bytes")) join.fixed = size->bytes();
  object.required("branches").for_each([&](const Element& branch) {
    join.branches.push_back(read_branch(branch));
  });
  if (const auto loss = object.optional("loss")) join.loss = read_loss(*loss);
  object.finish();
  validate_at(root, [&] { validate(join); });
  return join;
}

}  // namespace io

std::string to_json(const Join& join) {
  io::Writer writer;
  io::write_join(writer, join);
  return writer.take();
}

}  // namespace reprise
