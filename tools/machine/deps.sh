#!/bin/sh
# Installs what is missing to build and test, with "run" to build and run only. Does nothing if nothing is missing.
# --missing only prints the names of missing packages; --install PACKAGE... installs these instead.
#
# What is there is found by compiling and linking a line as the Makefile would, which passes CC, MPI_CFLAGS, MPI_LIBS,
# BLAS_CFLAGS and BLAS_LIBS. So a prefix in CPATH and LIBRARY_PATH, or a conda environment, is as good as a package.
# shellcheck disable=SC2086             # these are lists of words
set -u

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}
install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
if [ "${1-}" = --install ]; then
    shift
    install "$@"
    exit
fi
only_print=""
[ "${1-}" != --missing ] || { only_print=yes; shift; }

packages=""
need() {                # need PACKAGE COMMAND...: the package, unless the command succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
}
links() {               # links HEADER FUNCTION FLAG...: whether a program that calls the function compiles and links
    text="#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>                     /* cmocka.h needs these four */
#include <$1>
int main(void) { return !&$2; }"
    shift 2
    echo "$text" | ${CC:-cc} -xc - -xnone "$@" -o /dev/null
}

# The MPI that is there, whatever it is; MPICH where none is, and Open MPI where MPICH is broken. The MPICH of Ubuntu
# 24.04 starts ranks that do not see each other: its library uses PMIx, its mpiexec does not
# (https://bugs.launchpad.net/bugs/2072338).
BROKEN=4.2.0-5build3
mpi=mpich headers=libmpich-dev
open_mpi() {
    mpi=openmpi-bin headers=libopenmpi-dev
}
case $(mpicc -show 2>/dev/null || timeout 5 mpiexec --version 2>/dev/null) in
*openmpi* | *"Open MPI"* | *OpenRTE*) open_mpi ;;
esac
mpich_works() {
    [ $mpi != mpich ] || [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" != $BROKEN ]
}
need build-essential command -v ${CC:-cc}
need build-essential command -v make
need $mpi command -v mpiexec
need $headers links mpi.h MPI_Init ${MPI_CFLAGS-} ${MPI_LIBS-$(mpicc -show 2>/dev/null | cut -d ' ' -f 2-)}
need $headers command -v mpicc
need $mpi mpich_works
need libopenblas-openmp-dev links cblas.h cblas_sgemm ${BLAS_CFLAGS-} ${BLAS_LIBS--lopenblas}
need libcjson-dev links cjson/cJSON.h cJSON_Parse -lcjson
if [ "${1-}" != run ]; then
    need libcmocka-dev links cmocka.h _cmocka_run_group_tests -lcmocka
fi
needed=$packages
[ "${1-}" = run ] || need gnuplot-nox command -v gnuplot        # only for figures

if [ -n "$only_print" ]; then
    echo "${packages# }"
    exit
fi
[ -n "$packages" ] || exit 0

cannot() {              # cannot WHY: fails if a needed package is missing; only gnuplot may be missing
    cat <<END
missing:$packages; $1
    Debian, Ubuntu: apt-get install$packages
    Fedora: dnf install gcc make mpich-devel openblas-devel cjson-devel libcmocka-devel gnuplot; in each shell module
        load mpi/mpich-$(uname -m), and with each make BLAS_LIBS=-lopenblaso BLAS_CFLAGS=-I/usr/include/openblas
    without root, in a conda environment: conda install -c conda-forge mpich openblas cjson cmocka gnuplot
    in a prefix of your own: export CPATH=DIR/include LIBRARY_PATH=DIR/lib; a cluster's MPI: module avail mpi
END
    [ -z "$needed" ] || exit 1
    exit 0
}
[ "$(uname)" = Linux ] || cannot "the programs are for Linux; elsewhere use the container of .devcontainer/Dockerfile"
command -v apt-get >/dev/null || cannot "install them with your package manager, then try again"
[ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null || cannot "there is neither root nor sudo"
# no password prompt, each time, for a package that only figures need
[ -n "$needed" ] || [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null || cannot "it is needed for figures only"
as_root apt-get update -qq || cannot "apt-get update failed"
case " $packages " in
*" mpich "* | *" libmpich-dev "*)
    newest=$(LC_ALL=C apt-cache policy libmpich12 | sed -n 's/^ *Candidate: //p')
    if [ "$newest" = $BROKEN ]; then
        open_mpi
        echo "MPICH $BROKEN of this distribution is broken: Open MPI takes its place"
        packages="$(echo "$packages" | sed 's/ mpich\>//; s/ libmpich-dev\>//') $mpi $headers"
    else
        mpich_works || packages="$packages libmpich-dev libmpich12"
    fi ;;
esac
echo "installing$packages"
install $packages || cannot "apt-get could not install them"
