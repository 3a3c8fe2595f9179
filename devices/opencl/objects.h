// Recognizes OpenCL objects: each begins with the address of its vendor's function table
// (cl_khr_icd). OpenCL dereferences handles without checking them, so a handle from the user is
// passed on only if it looks like an object.
#pragma once

namespace hetcomm::opencl {

// Returns whether |name|, which may be any value, looks like an object of the vendor of |known|.
bool are_of_one_vendor(const void* known, const void* name);

// Registers the vendor of the object |known| for looks_like_object().
void note_vendor(const void* known);

// Returns whether |name|, which may be any value, looks like an object of a registered vendor.
// |name| must not be an address in device memory. [any-thread]
bool looks_like_object(const void* name);

}  // namespace hetcomm::opencl
