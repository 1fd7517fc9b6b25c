#!/usr/bin/env python3
# /// script
# requires-python = ">=3.9"
# dependencies = ["tokenizers"]
# ///
"""Text to tokens and back, with a tokenizer of Hugging Face.

    tokens.py encode TEXT... --tokenizer DIR -o x.bin      writes a file for --data, with llm.c's header
    tokens.py decode --tokenizer DIR [FILE]                prints the text of ids that --sample printed, or of x.bin
    tokens.py prompt TEXT --tokenizer DIR                  prints ids for --prompt

A text is read and encoded in pieces, so a large one takes no more memory than a small one. Each piece is encoded with
the 1,024 characters before and after it, whose tokens are then left out. So the pieces join as if the text had been
encoded at once, unless a word (of those into which the tokenizer splits a text) of over 1,024 characters lies between
two of them.
"""
import argparse
import array
import codecs
import itertools
import json
import os
import re
import signal
import struct
import sys
import time

PIECE, CONTEXT = 1 << 17, 1 << 10               # bytes to read at a time; characters around a piece
BATCH = 16                                      # pieces that the library encodes at a time, on all cores
HEADER_BYTES, MOST_TOKENS = 256 * 4, 2**31 - 1
# how llm.c's header begins, by type of the tokens: magic and version; then comes the number of tokens
BEGINNINGS = {"H": struct.pack("<2i", 20240520, 1), "I": struct.pack("<2i", 20240801, 7)}


def fail(message):
    sys.exit(f"tokens.py: {message}")


def read_json(directory, name):
    """Returns the object in a file beside the tokenizer, an empty one if there is no such file."""
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        try:
            return json.load(f)
        except ValueError as e:
            fail(f"{path}: expected JSON; {e}")


def open_tokenizer(path):
    """Returns the tokenizer, and the directory that it is in."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail(f"expected the library tokenizers, which {sys.executable} does not have; try uv run {sys.argv[0]}, or "
             "python3 -m venv DIR && DIR/bin/pip install tokenizers, and then DIR/bin/python3")
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        fail(f"--tokenizer {path}: expected tokenizer.json, which is not there; take it from the model's files (where "
             "they have only tokenizer.model, save_pretrained of transformers' AutoTokenizer writes it)")
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as e:                      # the library raises no class of its own
        fail(f"--tokenizer {file}: expected a file of the library tokenizers: {e}")
    tokenizer.no_truncation()                   # to the length of the model's sequences, which some files ask for
    tokenizer.no_padding()
    return tokenizer, os.path.dirname(file)


def separator_of(tokenizer, directory):
    """Returns the token that ends a document, and its id; None and None if the tokenizer has none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(directory, name).get("eos_token")
        token = token["content"] if isinstance(token, dict) else token
        if token and tokenizer.token_to_id(token) is not None:
            return token, tokenizer.token_to_id(token)
    return None, None


def chunks_of(path):
    """Yields a UTF-8 text as it is read. Line ends stay as they are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position, data = 0, b"-"
    with sys.stdin.buffer if path == "-" else open(path, "rb") as f:
        while data:
            data = f.read(PIECE)
            begin = position - len(decoder.getstate()[0])       # it may hold part of a character
            try:
                yield decoder.decode(data, final=not data)
            except UnicodeDecodeError as e:
                fail(f"{path}: expected UTF-8, got byte {e.object[e.start]:#04x} at position {begin + e.start}; iconv "
                     "converts text of other encodings")
            position += len(data)


def pieces_of(chunks):
    """Cuts a text at line ends. Yields each piece with the characters around it, and where it begins and ends there."""
    text, begin = "", 0
    for chunk in chunks:
        text += chunk
        last = len(text) - CONTEXT
        if last > begin:
            end = text.rfind("\n", begin, last) + 1 or last     # anywhere in a line that is longer
            yield text, begin, end
            text, begin = text[max(end - CONTEXT, 0):], min(end, CONTEXT)
    yield text, begin, len(text)


def ids_of(encoding, text, begin, end):
    """Returns a piece's ids. A token that two pieces share belongs to the second."""
    def first_at(position):
        tokens = map(encoding.char_to_token, range(position, len(text)))       # None: a normalizer removed it
        return next((t for t in tokens if t is not None), len(encoding))

    return encoding.ids[first_at(begin) if begin else 0:first_at(end)]


def write_tokens(f, kind, tokenizer, texts, separator):
    """Writes a header and the tokens of all texts. Returns the number of tokens, and of the texts' bytes."""
    count, read, began = 0, 0, time.monotonic()
    f.write(bytes(HEADER_BYTES))
    for i, path in enumerate(texts):
        if i and separator is not None:
            array.array(kind, [separator]).tofile(f)
            count += 1
        pieces = pieces_of(chunks_of(path))
        while batch := list(itertools.islice(pieces, BATCH)):
            encodings = tokenizer.encode_batch([text for text, _, _ in batch], add_special_tokens=False)
            for (text, begin, end), encoding in zip(batch, encodings):
                ids = array.array(kind, ids_of(encoding, text, begin, end))
                ids.tofile(f)
                count += len(ids)
                read += len(text[begin:end].encode())
            if count > MOST_TOKENS:
                fail(f"{path}: expected up to {MOST_TOKENS:,} tokens, which llm.c's header can count; take less text")
            if sys.stderr.isatty():
                speed = read / 1e6 / (time.monotonic() - began)
                print(f"{read / 1e6:,.0f} MB, {speed:.1f} MB/s\033[K", end="\r", file=sys.stderr, flush=True)
    if count == 0:
        fail(f"{' '.join(texts)}: expected text, got none")
    f.seek(0)
    f.write(BEGINNINGS[kind] + struct.pack("<i", count))
    return count, read


def encode(arguments):
    tokenizer, directory = open_tokenizer(arguments.tokenizer)
    output, part = os.path.realpath(arguments.output), f"{os.path.realpath(arguments.output)}.{os.getpid()}.part"
    if os.path.exists(output):
        beginning = b"none"
        if os.path.isfile(output):
            with open(output, "rb") as f:
                beginning = f.read(8)
        if beginning and beginning not in BEGINNINGS.values():
            fail(f"-o {arguments.output}: expected a new file or an earlier one of this option, but this one does not "
                 "begin with llm.c's header; use another name, or remove it")
    vocabulary = 1 + max(tokenizer.get_vocab().values())        # above its size where it leaves ids out
    separator, separator_id = separator_of(tokenizer, directory)
    if len(arguments.texts) > 1:
        print(f"between texts: {separator}, token {separator_id}" if separator else
              "between texts: nothing, because there is no eos_token beside the tokenizer")
    try:
        with open(part, "wb") as f:
            count, read = write_tokens(f, "H" if vocabulary <= 65536 else "I", tokenizer, arguments.texts, separator_id)
        os.replace(part, output)
    finally:                                    # where it was not renamed
        if os.path.exists(part):
            os.remove(part)
    model = max(vocabulary, read_json(directory, "config.json").get("vocab_size", 0))   # often has unused rows
    print(f"{arguments.output}: {count:,} tokens of a vocabulary of {vocabulary:,}, {read / count:.1f} bytes per "
          f"token; train with --vocab {model}")


def parts_of(f):
    """Yields the ids in a file as numbers, and its other lines as bytes, each as soon as it is complete. White space
    after an id separates it from the next, and is not yielded."""
    for kind, beginning in BEGINNINGS.items():
        if f.peek(len(beginning))[:len(beginning)] == beginning:
            f.read(HEADER_BYTES)
            for data in iter(lambda: f.read(PIECE), b""):
                yield from array.array(kind, data)
            return
    text, after_id, data = b"", False, b"-"
    while data:
        data = f.read1(PIECE)
        text += data or (text and b"\n")        # at the end of the file, the last line's end
        rest = b""
        for match in re.finditer(rb"[ \t]*(\d{1,10})\s|.*\n|.+", text):
            if match[1]:
                yield int(match[1])
                after_id = True
            elif not match[0].endswith(b"\n"):
                rest = match[0]                 # and the last match
            elif not (after_id and match[0].isspace()):
                yield match[0]
                after_id = False
        text = rest


def prompt(arguments):
    print(*open_tokenizer(arguments.tokenizer)[0].encode(arguments.text, add_special_tokens=False).ids)


def decode(arguments):
    tokenizer, _ = open_tokenizer(arguments.tokenizer)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)       # as other programs that stand in a pipe
    out, before, new = sys.stdout.buffer, [], []

    def show(last):
        """Prints the new ids' text, which depends on the ids before them. Unless they are the last, they wait while
        they end within a character."""
        nonlocal before, new
        text = tokenizer.decode(before + new, skip_special_tokens=False)
        if last or not text.endswith("\ufffd"):
            out.write(text[len(tokenizer.decode(before, skip_special_tokens=False)):].encode())
            before, new = [] if last else new, []
        out.flush()

    with sys.stdin.buffer if arguments.file == "-" else open(arguments.file, "rb") as f:
        for part in parts_of(f):
            if isinstance(part, bytes):
                if before or new:
                    show(last=True)
                    part = b"\n" + part
                out.write(part)
                out.flush()
            elif part < 2**32 and tokenizer.id_to_token(part) is not None:
                new.append(part)
                show(last=False)
            else:
                show(last=True)
                fail(f"expected ids in the vocabulary of {arguments.tokenizer}, got {part}; take the tokenizer of the "
                     "model that wrote them")
    show(last=True)
    if out.isatty():
        print()


def main():
    parser = argparse.ArgumentParser(prog="tokens.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="encode|decode|prompt")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--tokenizer", metavar="DIR", required=True, help="where tokenizer.json is, or this file")
    command = commands.add_parser("encode", parents=[common], help="text to a file of tokens")
    command.add_argument("texts", metavar="TEXT", nargs="+", help="a file of UTF-8 text; -: standard input")
    command.add_argument("-o", dest="output", metavar="FILE", required=True, help="the file of tokens, *.bin")
    command.set_defaults(run=encode)
    command = commands.add_parser("decode", parents=[common], help="ids to text")
    command.add_argument("file", metavar="FILE", nargs="?", default="-",
                         help="a file of tokens, or of ids in decimal (lines that do not begin with one are printed as "
                              "they are); by default standard input")
    command.set_defaults(run=decode)
    command = commands.add_parser("prompt", parents=[common], help="a text to ids in a line, for --prompt of a program")
    command.add_argument("text", metavar="TEXT", help="the text itself")
    command.set_defaults(run=prompt)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except OSError as e:
        fail(f"{e.filename}: {e.strerror}" if e.filename else e.strerror)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
