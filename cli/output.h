// These functions write text: results to stdout or a file, messages and a live status line to
// stderr.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/model/observer.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"
#include "reprise/report/text.h"

namespace reprise::cli {

// Throws InputError if stdout takes no more text (a full disk). A reader that went away is not an
// error: the rest of the text is dropped.
void print(std::string_view text);

// Writes "reprise: <text>" to stderr, with control characters made visible.
void say(std::string_view text);
// Writes an error: "reprise: error: <text>".
void complain(std::string_view text);

// A NamedFile is a file of a command, and the argument that named it. An empty path is none.
struct NamedFile {
  std::string argument;  // "-o"
  std::filesystem::path path;
};

// Throws InputError if an output could not be written later: a folder that is missing or not writable,
// a read-only file, a path that is a folder, or a file that is also an input or another output. So nobody
// waits for a search in vain, and no file is lost.
void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);
// Calls the function. An InputError that names a place of a file and no file gets the name of this one.
template <class Function>
decltype(auto) in_file(const std::filesystem::path& path, Function&& function) {
  try {
    return function();
  } catch (const InputError& error) {
    if (!error.where().file.empty() || error.where().pointer.empty()) throw;
    throw InputError(error.what(), {.file = path.string(), .pointer = {}, .line = 0});
  }
}

// Calls write_file() such that an interrupt (Ctrl-C) cannot cut it in half: the interrupt comes
// before or after.
void write_output(const std::filesystem::path& path, std::string_view content);

// Returns text such as ", 71.9 % of plain training's peak", and nothing if that peak is not known.
std::string share_of_plain(Bytes bytes, const Baseline& plain);

// Returns options for plain text if stdout is no terminal or NO_COLOR is set.
TextOptions text_options();

// A StatusLine is a line on stderr that is rewritten while work goes on, and wiped at the end. It
// appears only on a terminal.
class StatusLine {
 public:
  explicit StatusLine(bool quiet);
  ~StatusLine() { wipe(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Returns an empty observer if nothing would be shown. The observer refers to this object.
  Observer observer();
  void wipe();

 private:
  void show(const Progress& progress);

  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace reprise::cli
