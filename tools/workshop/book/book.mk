# The book: a static site of all chapters, programs, diffs, and pages that compute. It needs Sphinx, MyST and Furo; with
# Emscripten its pages compute in the browser, without it they only say what is missing.
BOOK := $(BUILD)/book
BOOK_C := $(wildcard tools/workshop/book/*.c) $(addprefix 06_pipeline_parallel/,schedule.c simulation.c) \
	09_combined/formulas.c 10_expert_parallel/experts_cpu.c 11_five_dimensions/formulas.c \
	$(filter-out %/plan.c %/runs.c %/config.c,$(wildcard tools/planner/*.c)) \
	$(addprefix common/base/,error.c memory.c options.c print.c tensor.c)
BOOK_FLAGS := -std=gnu11 -D_GNU_SOURCE -O2 -ffunction-sections -fdata-sections $(WARNINGS) -Wno-unknown-pragmas \
	-Itools/workshop/book/headers
BOOK_PACKAGES := python3-sphinx python3-myst-parser furo emscripten node-acorn

$(BOOK)/native: $(BOOK_C) 00_collectives/collectives.c $(wildcard tools/workshop/book/*.h tools/workshop/book/headers/*.h \
		06_pipeline_parallel/*.h 09_combined/*.h 10_expert_parallel/*.h tools/planner/*.h common/*/*.h)
	@mkdir -p $(BOOK); echo "  CC  $@"; $(CC) $(BOOK_FLAGS) -Wl,--gc-sections $(BOOK_C) -lm -o $@
# SINGLE_FILE: a page that was opened from a file may not fetch a .wasm.
$(BOOK)/book.js: $(BOOK)/native
	@echo "  EMCC  $@"; NODE_PATH=/usr/share/nodejs emcc $(BOOK_FLAGS) $(BOOK_C) -s SINGLE_FILE=1 -s ENVIRONMENT=web \
		-s MODULARIZE=1 -s EXPORT_NAME=compute -s EXIT_RUNTIME=1 -s ALLOW_MEMORY_GROWTH=1 -o $@

NEEDS_SPHINX := command -v sphinx-build >/dev/null || { echo "the book needs Sphinx, MyST and Furo: make book INSTALL=1," \
	"or apt-get install $(BOOK_PACKAGES)"; exit 1; }
book: deps		## make the book, a site in build/book/html: INSTALL=1 installs what it needs; RECORD=1 records the front page's steps
	@$(if $(INSTALL),tools/machine/deps.sh --install $(BOOK_PACKAGES))
	@$(NEEDS_SPHINX)
	@command -v emcc >/dev/null || echo "there is no Emscripten, so pages compute nothing: make book INSTALL=1"
	@$(MAKE) --no-print-directory cpu $(BOOK)/native $$(command -v emcc >/dev/null && echo $(BOOK)/book.js)
	@cd $(BOOK) && rm -rf source extra changes html && mkdir -p source extra/traces extra/steps
	@BOOK=$(ROOT)/$(BOOK) RECORD=$(RECORD) sphinx-build -q -j auto -d $(BOOK)/doctrees -c tools/workshop/book $(BOOK)/source $(BOOK)/html
	@echo "the book is in $(BOOK)/html/index.html"

epub: $(BOOK)/native	## make the chapters an ePub, for readers without a browser: needs make book's Sphinx
	@$(NEEDS_SPHINX)
	@cd $(BOOK) && rm -rf source_epub extra_epub epub && mkdir -p source_epub extra_epub
	@EPUB=1 BOOK=$(ROOT)/$(BOOK) sphinx-build -q -b epub -d $(BOOK)/doctrees_epub -c tools/workshop/book \
		$(BOOK)/source_epub $(BOOK)/epub
	@echo "the chapters are in $(BOOK)/epub/ultrascalec.epub"

slides:			## make the workshop's slides, one HTML file that prints: needs make book's MyST
	@/usr/bin/python3 -c "import markdown_it" 2>/dev/null || { echo "the slides need markdown-it, which comes with MyST:" \
		"make book INSTALL=1, or apt-get install python3-markdown-it"; exit 1; }
	@mkdir -p build/slides
	@/usr/bin/python3 tools/workshop/slides/slides.py build/slides/slides.html

test-book:
	@command -v sphinx-build >/dev/null && command -v emcc >/dev/null && command -v chromium >/dev/null && \
		command -v chromedriver >/dev/null && /usr/bin/python3 -c "import selenium" 2>/dev/null || { \
		echo "[  SKIPPED ] test_book needs make book INSTALL=1, and" \
		"apt-get install chromium chromium-driver python3-selenium"; exit 0; }; \
		$(MAKE) --no-print-directory book epub slides && BOOK=$(ROOT)/$(BOOK) FULL=$(FULL) tools/workshop/book/test_book.py
.PHONY: book epub slides test-book
