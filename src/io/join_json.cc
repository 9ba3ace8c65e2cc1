// Reads and writes the format reprise.join.
#include <algorithm>

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

// Reads the stages that use the same weights, by the name of the branch and the position of the
// stage.
SharedWeights read_uses(const Element& element, const std::vector<Branch>& branches) {
  SharedWeights uses;
  element.for_each([&](const Element& use) {
    Object object(use);
    const Element name = object.required("branch");
    const auto found = std::find_if(branches.begin(), branches.end(), [&](const Branch& branch) {
      return branch.name == name.text();
    });
    if (found == branches.end()) name.fail("names no branch of the join");
    uses.push_back({static_cast<size_t>(found - branches.begin()),
                    static_cast<size_t>(object.required("stage").integer())});
    object.finish();
  });
  return uses;
}

void write_uses(Writer& writer, const Join& join, const SharedWeights& uses) {
  writer.open_array();
  for (const StagePlace& use : uses) {
    writer.open_object()
        .field("branch", join.branches[use.branch].name)
        .field("stage", static_cast<int64_t>(use.stage));
    writer.close();
  }
  writer.close();
}

}  // namespace

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
  if (!join.shared.empty()) {
    writer.key("shared_weights").open_array();
    for (const SharedWeights& uses : join.shared) write_uses(writer, join, uses);
    writer.close();
  }
  writer.close();
}

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
  if (const auto shared = object.optional("shared_weights")) {
    shared->for_each(
        [&](const Element& uses) { join.shared.push_back(read_uses(uses, join.branches)); });
  }
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
