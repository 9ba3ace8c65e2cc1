#include "double_mapping.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sim {
namespace {

constexpr size_t kPage = size_t{1} << 16;  // a multiple of every usual size of pages

}  // namespace

DoubleMapping::DoubleMapping(size_t bytes, Front front)
    : bytes_((bytes + kPage - 1) / kPage * kPage) {
  const int file = memfd_create("sim", MFD_CLOEXEC);
  bool good = file >= 0 && ftruncate(file, static_cast<off_t>(bytes_)) == 0;
  if (good) {
    const int access = front == Front::kForbidden ? PROT_NONE : PROT_READ | PROT_WRITE;
    void* const first = mmap(nullptr, bytes_, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* const second =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (first != MAP_FAILED) front_ = static_cast<char*>(first);
    if (second != MAP_FAILED) back_ = static_cast<char*>(second);
    good = front_ != nullptr && back_ != nullptr;
  }
  const int error = errno;
  if (file >= 0) close(file);
  TORCH_CHECK(good, "sim: cannot map ", bytes_, " bytes twice: ", std::strerror(error),
              "; give the devices a smaller capacity");
  if (front == Front::kForbidden) {
    madvise(front_, bytes_, MADV_DONTFORK);
    madvise(back_, bytes_, MADV_DONTFORK);
  }
}

DoubleMapping::~DoubleMapping() {
  if (front_ != nullptr) munmap(front_, bytes_);
  if (back_ != nullptr) munmap(back_, bytes_);
}

}  // namespace sim
