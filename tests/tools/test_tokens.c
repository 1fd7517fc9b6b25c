/* tools/data/tokens.py: a text's tokens are those that the library makes of the whole text, 01 trains on them, and they
 * become the same text again. What needs python3, or its library tokenizers, is skipped where they are missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness.h"

#define TOKENS SOURCE "/tools/data/tokens.py "
#define ENCODE "python3 " TOKENS "encode --tokenizer tiny "
#define DECODE "python3 " TOKENS "decode --tokenizer tiny "

/* Writes a text of several pieces, the last ones without white space, whose characters have one to four bytes; a
 * tokenizer for it; and the text's ids. */
static const char train[] =
    "import json, os\n"
    "from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers\n"
    "with open('" SOURCE "/01_single_gpu/shakespeare.txt') as f:\n"
    "    text = f.read()[:300000].replace('the', 'th\\u00e9 \\u6f22\\U0001f600').replace('And', '\\r\\n\\n \\n')\n"
    "text = text[:100000] + ''.join(text[100000:].split())\n"
    "with open('text', 'w', encoding='utf-8', newline='') as f:\n"
    "    f.write(text)\n"
    "tiny = Tokenizer(models.BPE())\n"
    "tiny.pre_tokenizer, tiny.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()\n"
    "tiny.train_from_iterator([text[:100000]], trainers.BpeTrainer(\n"
    "    vocab_size=2000, special_tokens=['<end>'], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),\n"
    "    show_progress=False))\n"
    "os.mkdir('tiny')\n"
    "with open('tiny/tokenizer_config.json', 'w') as f:\n"
    "    json.dump({'eos_token': {'content': '<end>'}}, f)\n"
    "tiny.save('tiny/tokenizer.json')\n"
    "with open('ids', 'w') as f:\n"
    "    print(*tiny.encode(text).ids, file=f)\n";

static bool have_python, have_library;

static bool succeeds(const char *command)
{
    Result r = run("%s", command);
    const bool good = r.status == 0;

    result_free(r);
    return good;
}

static int set_up(void **state)
{
    have_python = succeeds("python3 -c ''");
    have_library = succeeds("python3 -c 'import tokenizers'");
    if (have_library) {
        write_file("train.py", train, strlen(train));
        run_well("python3 train.py");
        run_well(ENCODE "text -o text.bin");
    }
    write_file("words", "na\xc3\xafve", 6);
    return 0;
}

static void need(bool there, const char *what)
{
    if (!there) {
        print_message("%s is not installed\n", what);
        skip();
    }
}

#define NEED_LIBRARY need(have_library, "the library tokenizers of python3")

/* Fails unless a command prints this text and nothing else. */
static void expect_text(const char *command, const char *text)
{
    Result r = run("%s", command);

    if (r.status || strcmp(r.out, text))
        fail_msg("%s: status %d, or another text: %.200s; %s", command, r.status, r.out, r.err);
    result_free(r);
}

static void a_text_comes_back(void **state)
{
    NEED_LIBRARY;
    char *text = read_file(in_temporary("text"));
    expect_text(DECODE "text.bin", text);
    expect_text(DECODE "ids", text);
    free(text);
    run_well("python3 -c 'from array import array; assert [int(i) for i in open(\"ids\").read().split()] == "
             "array(\"H\", open(\"text.bin\", \"rb\").read()[1024:]).tolist()'");
    expect(run(ENCODE "words words -o words.bin"), 0, "between texts: <end>, token 0\n|words.bin: |"
           " tokens of a vocabulary of 2,000, |; train with --vocab 2000\n");
    expect_text(DECODE "words.bin", "na\xc3\xafve<end>na\xc3\xafve");
}

static void programs_read_the_tokens_and_print_ids(void **state)
{
    NEED_LIBRARY;
    Result r = run(BUILD "/cpu/01_single_gpu --data text.bin --vocab 2000 --steps 1 --layers 1 --hidden 8 --heads 1 "
                   "--seq 8 --threads 1 --quiet --sample 20");
    write_file("sample", r.out, strlen(r.out));
    expect(r, 0, "\nsample after the prompt \"0\":\n0 ");
    expect(run(DECODE "sample"), 0, "\nsample after the prompt \"0\":\n<end>");
    static const char lines[] = "step 1\n\n0 0 \n\nstep 2\n 0";
    write_file("lines", lines, strlen(lines));
    expect_text(DECODE "lines", "step 1\n\n<end><end>\nstep 2\n<end>");
}

/* --prompt takes the ids of a text, which come back before the sample. */
static void a_prompt_is_ids(void **state)
{
    static const struct {
        const char *prompt, *words;
    } wrong[] = {
        {"Once upon", "--prompt: expected ids below --vocab 2000 with spaces between them, because such tokens are no "
                      "bytes, got 'Once upon'; tools/data/tokens.py prompt makes them of a text\n"},
        {"3 2000", "got '3 2000'"}, {"-1", "got '-1'"}, {"3,4", "got '3,4'"},
        {"", "expected TEXT, got an empty string"},
    };
    static const char sampler[] = BUILD "/cpu/01_single_gpu --data text.bin --vocab 2000 --steps 0 --layers 1 "
                                  "--hidden 8 --heads 1 --seq 8 --threads 1 --quiet --sample 3 --prompt";

    char words[256];

    NEED_LIBRARY;
    Result ids = run("python3 " TOKENS "prompt na\xc3\xafve --tokenizer tiny");
    ids.out[strcspn(ids.out, "\n")] = 0;
    snprintf(words, sizeof words, "sample after the prompt \"%s \":\n%s ", ids.out, ids.out);
    expect(run("%s '%s '", sampler, ids.out), 0, words);
    write_file("ids_of_prompt", ids.out, strlen(ids.out));
    expect_text(DECODE "ids_of_prompt", "na\xc3\xafve");
    result_free(ids);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect(run("%s '%s'", sampler, wrong[i].prompt), 2, wrong[i].words);
}

static void one_line_says_what_is_wrong(void **state)
{
    NEED_LIBRARY;
    write_file("latin1", "na\xefve", 5);
    write_file("ids_of_another", "0 2000", 6);
    expect(run(ENCODE "latin1 -o latin1.bin"), 1,
           "tokens.py: latin1: expected UTF-8, got byte 0xef at position 2; iconv converts");
    expect(run("sh -c 'ls latin1.*'"), FAILS, "");              /* no part of the output either */
    expect(run(ENCODE "words -o ids"), 1, "tokens.py: -o ids: expected a new file or an earlier one of this option");
    expect(run(ENCODE "nothing -o words.bin"), 1, "tokens.py: nothing: No such file or directory\n");
    expect(run("python3 " TOKENS "encode --tokenizer . words -o words.bin"), 1,
           "tokens.py: --tokenizer .: expected tokenizer.json, which is not there; take it from");
    expect(run("python3 " TOKENS "encode --tokenizer ids words -o words.bin"), 1,
           "tokens.py: --tokenizer ids: expected a file of the library tokenizers: ");
    expect(run(DECODE "ids_of_another"), 1, "<end>|tokens.py: expected ids in the vocabulary of tiny, got 2000; take");
}

static void without_the_library_a_line_says_how_to_get_it(void **state)
{
    need(have_python, "python3");
    expect(run("python3 -I -S " TOKENS "encode --tokenizer tiny words -o words.bin"), 1,
           "tokens.py: expected the library tokenizers, which |does not have; try uv run |pip install tokenizers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_comes_back), cmocka_unit_test(programs_read_the_tokens_and_print_ids),
        cmocka_unit_test(a_prompt_is_ids),
        cmocka_unit_test(one_line_says_what_is_wrong),
        cmocka_unit_test(without_the_library_a_line_says_how_to_get_it),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
