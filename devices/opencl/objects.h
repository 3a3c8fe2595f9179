// Objects of OpenCL, told from everything else: each begins with the address of its vendor's table
// of functions (cl_khr_icd). OpenCL reads through whatever it is given as an object, so that
// nothing reaches it before it looks like one.
#pragma once

namespace hetcomm::opencl {

// Whether |name|, which may be any number, looks like an object of the vendor that |known| is of.
bool are_of_one_vendor(const void* known, const void* name);

// Lets looks_like_object() know the vendor that |known|, an object, is of.
void note_vendor(const void* known);

// Whether |name|, which may be any number, looks like an object of a vendor that was noted. It is
// no memory of a device. [any-thread]
bool looks_like_object(const void* name);

}  // namespace hetcomm::opencl
