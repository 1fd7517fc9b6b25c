#!/bin/sh
# Installs the packages of Debian or Ubuntu that are missing to build and test. Does nothing if none is missing.
# --missing only prints the names of missing packages; --install PACKAGE... installs these instead.
set -eu

packages=""
need() {                # need PACKAGE COMMAND...: the package, unless the command succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
}
header() {
    printf '#include <%s>\n' "$1" | cc -E - 
}
installed() {           # installed FILE...: whether one of them is in a library directory
    for file in "$@"; do
        for found in /usr/lib/*/"$file" /usr/lib64/"$file" /usr/lib/"$file"; do
            [ ! -e "$found" ] || return 0
        done
    done
    return 1
}
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
need build-essential command -v cc
need build-essential command -v make
need mpich command -v mpiexec
need libmpich-dev command -v mpicc
need libopenblas-openmp-dev installed openblas-openmp/libopenblas.so libopenblaso.so    # Debian's name, Fedora's
need libcjson-dev header cjson/cJSON.h
need libcmocka-dev installed libcmocka.so
needed=$packages
need gnuplot-nox command -v gnuplot             # only for figures

if [ "${1-}" = --missing ]; then
    echo "${packages# }"
    exit
fi

# The MPICH of Ubuntu 24.04 starts ranks that do not see each other: its library uses PMIx, its mpiexec does not
# (https://bugs.launchpad.net/bugs/2072338). Programs on one rank work, so this script does not fail.
BROKEN=4.2.0-5build3
repair_mpich() {
    [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" = $BROKEN ] || return 0
    newer=$(apt-cache policy libmpich12 | sed -n 's/^ *Candidate: //p')
    if dpkg --compare-versions "$newer" gt $BROKEN; then
        echo "installing MPICH $newer in place of $BROKEN, whose ranks do not see each other"
        install libmpich12 libmpich-dev mpich
        return
    fi
    cat <<END
note: MPICH $BROKEN of this distribution is broken: under mpiexec each rank is alone. 4.2.0-5.1 is repaired. Fetch
libmpich12, libmpich-dev and mpich, for $(dpkg --print-architecture), from
    https://launchpad.net/ubuntu/+source/mpich/4.2.0-5.1 (under "Builds"), then
    sudo dpkg -i libmpich12_4.2.0-5.1_*.deb libmpich-dev_4.2.0-5.1_*.deb mpich_4.2.0-5.1_*.deb
    sudo apt-mark hold libmpich12 libmpich-dev mpich
END
}
[ -n "$packages" ] || { repair_mpich; exit 0; }

cannot() {              # cannot WHY: fails if a needed package is missing; only gnuplot may be missing
    echo "missing:$packages; $1"
    [ -z "$needed" ] || exit 1
    exit 0
}
if ! command -v apt-get >/dev/null; then
    fedora="gcc make mpich-devel openblas-devel cjson-devel libcmocka-devel gnuplot"
    case "$(uname) $(command -v dnf)" in
    Linux\ /*) cannot "on Fedora: sudo dnf install $fedora
then, in each shell: module load mpi/mpich-$(uname -m)
and with every make: BLAS_LIBS=-lopenblaso BLAS_CFLAGS=-I/usr/include/openblas" ;;
    Linux*) cannot "these are names of Debian packages: install them with your package manager, then try again" ;;
    *) cannot "the programs are for Linux; elsewhere use the container that .devcontainer/Dockerfile describes" ;;
    esac
fi
[ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null || cannot "as root: apt-get install$packages"
# no password prompt, each time, for a package that only figures need
[ -n "$needed" ] || [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null || cannot "for figures: sudo apt-get install$packages"
echo "installing$packages"
# shellcheck disable=SC2086
{ as_root apt-get update -qq && install $packages; } || cannot "apt-get could not install them"
repair_mpich
