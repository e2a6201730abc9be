// Functions that only have to set one of their arguments, of which libraries have hundreds.
//
// They are declared with `...` and read like that. It is not how NVIDIA's headers declare them, but on Linux, x86-64 and
// aarch64 alike, a caller passes pointers and whole numbers in the same places either way.
#pragma once
#include <cstdarg>
#include <cstdint>

#include "interface.h"

// Sets the argument at `position`, counted from 1, which points to a `Type`, and returns 0.
#define SETS_ARGUMENT(name, position, Type, value)                                  \
  PUBLIC int name(void* first, ...) {                                               \
    va_list arguments;                                                              \
    va_start(arguments, first);                                                     \
    void* at = first;                                                               \
    for (int i = 1; i < (position); i++) at = va_arg(arguments, void*);             \
    va_end(arguments);                                                              \
    if (at) *static_cast<Type*>(at) = static_cast<Type>(value);                     \
    return 0;                                                                       \
  }

// The same for two arguments that follow each other.
#define SETS_TWO_ARGUMENTS(name, position, Type, value)                             \
  PUBLIC int name(void* first, ...) {                                               \
    va_list arguments;                                                              \
    va_start(arguments, first);                                                     \
    void* at = first;                                                               \
    for (int i = 1; i < (position); i++) at = va_arg(arguments, void*);             \
    void* next = va_arg(arguments, void*);                                          \
    va_end(arguments);                                                              \
    if (at) *static_cast<Type*>(at) = static_cast<Type>(value);                     \
    if (next) *static_cast<Type*>(next) = static_cast<Type>(value);                 \
    return 0;                                                                       \
  }

// Handles and descriptors without content, made through the first argument.
#define MAKES_HANDLE(name)           \
  PUBLIC int name(void** made, ...) { \
    *made = new char[8]();           \
    return 0;                        \
  }
