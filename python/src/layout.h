// A Layout says which rank holds which boxes of a tensor. Python programs pass layouts to plans.
#pragma once

#include <cstddef>
#include <nanobind/nanobind.h>

#include <hetcomm/hetcomm.h>

namespace hetcomm_python {

class Layout {
 public:
  Layout(hetcomm_layout_t* handle, size_t dimensions) : handle_(handle), dimensions_(dimensions) {}
  ~Layout() { static_cast<void>(hetcomm_layout_destroy(handle_)); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  const hetcomm_layout_t* handle() const { return handle_; }
  size_t dimensions() const { return dimensions_; }

 private:
  hetcomm_layout_t* handle_;
  size_t dimensions_;
};

// Returns the handle of an argument. Raises TypeError if Python passed None.
inline const hetcomm_layout_t* handle_of(const Layout* layout) {
  if (layout == nullptr) throw nanobind::type_error("a layout is None");
  return layout->handle();
}

}  // namespace hetcomm_python
