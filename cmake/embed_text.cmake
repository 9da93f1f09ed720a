# cmake -DINPUT=file -DOUTPUT=file.cc -DSYMBOL=name -P embed_text.cmake: writes a C++ file with the text as a string.
file(READ ${INPUT} text)
string(FIND "${text}" ")embed\"" delimiter)
if(NOT delimiter EQUAL -1)
  message(FATAL_ERROR "${INPUT} contains the delimiter of the string literal")
endif()
file(WRITE ${OUTPUT} "extern const char ${SYMBOL}[];\nconst char ${SYMBOL}[] = R\"embed(${text})embed\";\n")
